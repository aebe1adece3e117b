"""Speak at Discord: messages, edits, files, buttons, signs. Nothing is retried."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import aiohttp

from channels.discord import payloads, text
from channels.discord.api import Api, path
from channels.discord.errors import MissingAccess, UnknownResource
from channels.discord.payloads import CHANNEL_MESSAGE
from channels.discord.send import markup, rendering
from channels.discord.send.deferred_replies import DeferredReplies, DeferredReply
from channels.discord.send.rendering import TEXT_LIMIT
from channels.errors import Ambiguous, ChannelError, Rejected, Undeliverable, Unsupported
from channels.message import Address, ButtonPress, Command, File, Reply, SentMessage, StatusReaction
from channels.port import Sender

UPLOAD_LIMIT = 10 * 1024 * 1024
DOWNLOAD_LIMIT = 100 * 1024 * 1024
NONCE_LENGTH = 25
REFERENCE_PARTS = 3
PAGE_SIZE, MAX_PAGES = 100, 3
EMOJI = {
    StatusReaction.SEEN: "\N{EYES}",
    StatusReaction.DONE: "\N{WHITE HEAVY CHECK MARK}",
    StatusReaction.FAILED: "\N{CROSS MARK}",
}
MAX_REMEMBERED = 10_000
CLOCK_SKEW = timedelta(minutes=1)
"""How far Discord's clock and ours may differ."""

READ_PERMISSION = "Read Message History"
SEND_PERMISSIONS = ("Send Messages", "Send Messages in Threads")


def nonce(key: str) -> str:
    """Return a delivery's nonce: its key where that is short enough, else what spreads over all of it."""
    if 0 < len(key) <= NONCE_LENGTH:
        return key
    return base64.b32encode(sha256(key.encode()).digest()).decode().lower()[:NONCE_LENGTH]


class DiscordSender(Sender):
    """The sending half of a Discord bot."""

    def __init__(self, api: Api, deferred: DeferredReplies, *, bot: payloads.Bot) -> None:
        self._api = api
        self._deferred = deferred
        self._bot = bot
        self._reactions: OrderedDict[str, StatusReaction] = OrderedDict()

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message; a repetition of the same delivery within minutes is recognised by Discord.

        The first answer to a slash command takes the place of its "is thinking…".
        """
        key = nonce(reply.key)
        before = await self._deferred.find_filled(key)
        if before is not None:
            return await self.edit(address, before[1], reply)
        waiting = await self._deferred.claim(address, reply.key, key)
        if waiting is not None:
            try:
                return await self._fill_deferred(waiting, reply)
            except Rejected:  # its time is over, or a text that is refused here is judged there
                self._deferred.delete_claim(reply.key)
        return await self._send(address, reply, rendering.nonce_fields(key))

    async def _send(self, address: Address, reply: Reply, nonce_fields: Mapping[str, Any]) -> SentMessage:
        where = path("channels", rendering.channel_id_of(address), "messages")
        return _parse_sent(
            await self._call_rendered(
                "POST", where, address, {**nonce_fields, **rendering.reply_fields(reply)}, reply
            )
        )

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Make a message of ours say something else."""
        where = path("channels", rendering.channel_id_of(address), "messages", platform_id)
        await self._call_rendered("PATCH", where, address, {}, reply)
        return SentMessage(platform_id=platform_id)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Look for a message of ours with the key's nonce; raises Unsupported where nonces are not shown."""
        wanted = nonce(key)
        before = await self._deferred.find_filled(wanted)
        if before is not None:
            return SentMessage(platform_id=before[1])
        after, is_certain = payloads.time_snowflake(since - CLOCK_SKEW), True
        for _ in range(MAX_PAGES):
            page = await self._page(address, after)
            ours = [one for one in page if self._is_ours(one)]
            found = [one for one in ours if one.get("nonce") == wanted]
            if found:
                return _parse_sent(found[0])
            is_certain &= all("nonce" in one or "interaction_metadata" in one for one in ours)
            if len(page) < PAGE_SIZE:
                break
            after = max(int(message["id"]) for message in page)
        else:
            is_certain = False
        if not is_certain:
            raise Unsupported("find: Discord does not show here which messages are whose")
        return None

    async def _page(self, address: Address, after: int) -> list[dict[str, Any]]:
        where = path("channels", rendering.channel_id_of(address), "messages")
        query = f"after={after}&limit={PAGE_SIZE}"
        try:
            found = await self._call("GET", where, address, name="find", needs=READ_PERMISSION, query=query)
        except UnknownResource:
            raise Unsupported("find: there is no history to look into") from None
        listed = found if isinstance(found, list) else []
        return [one for one in listed if isinstance(one, dict) and str(one.get("id")).isdecimal()]

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        author = message.get("author")
        return isinstance(author, dict) and author.get("id") == self._bot.id

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Put our sign under a message; one of ours that is there goes."""
        before = self._reactions.pop(platform_id, None)
        if reaction is not None:
            await self._change_reaction("PUT", address, platform_id, reaction)
            self._reactions[platform_id] = reaction
            if len(self._reactions) > MAX_REMEMBERED:
                self._reactions.popitem(last=False)
        if before is None and reaction is StatusReaction.SEEN:  # the first of all
            return
        for old in EMOJI if before is None else (before,):
            if old is not reaction:
                await self._change_reaction("DELETE", address, platform_id, old)

    async def _change_reaction(
        self, method: str, address: Address, message: str, reaction: StatusReaction
    ) -> None:
        where = path(
            "channels",
            rendering.channel_id_of(address),
            "messages",
            message,
            "reactions",
            EMOJI[reaction],
            "@me",
        )
        try:
            await self._call(method, where, address, name="react", needs="Add Reactions")
        except Rejected:
            if method != "DELETE":  # what is not there is gone
                raise

    async def typing(self, address: Address) -> None:
        """Show "typing" for about ten seconds."""
        where = path("channels", rendering.channel_id_of(address), "typing")
        await self._call("POST", where, address, name="typing", needs=_send_permission(address))

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as an attachment."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, Discord takes {UPLOAD_LIMIT}")
        name = _file_name(file)
        described = {
            **rendering.nonce_fields(nonce(key)),
            **rendering.message_fields(file.caption[:TEXT_LIMIT]),
            "attachments": [{"id": 0, "filename": name}],
        }
        form = aiohttp.FormData(quote_fields=False)  # Discord takes names as they are, in UTF-8
        form.add_field("payload_json", json.dumps(described), content_type="application/json")
        form.add_field("files[0]", file.content, filename=name, content_type=_media_type(file))
        where = path("channels", rendering.channel_id_of(address), "messages")
        return _parse_sent(
            await self._call("POST", where, address, name="upload", needs="Attach Files", form=form)
        )

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; its address is asked for first, because addresses end after a day."""
        size = 0
        async for chunk in self._api.fetch(await self._get_file_url(ref)):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Show a notice to the person who pressed, and to nobody else; a command is answered in its place.

        While the press or command is still being accepted, the answer is its acknowledgement.
        """
        parts = to.token.split("/")
        if len(parts) != REFERENCE_PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
            raise Rejected("this cannot be answered")
        if self._deferred.is_accepting(parts[1]) and await self._acknowledge(parts, text):
            self._deferred.mark_acknowledged(parts[1])
        elif isinstance(to, Command):
            await self._reply_to_command(to, parts, text)
        else:
            await self._reply_to_press(parts, text)

    async def _reply_to_press(self, parts: list[str], text: str) -> None:
        """Say it beside the message; a press that nobody acknowledged is acknowledged so."""
        try:
            await self._post_without_token(
                path("webhooks", parts[0], parts[2]), rendering.ephemeral_fields(text)
            )
        except Rejected:
            if not await self._acknowledge(parts, text):
                raise

    async def _reply_to_command(self, to: Command, parts: list[str], text: str) -> None:
        """Fill the command's place; when its token has ended, the bot says it in the channel."""
        application, number, token = parts
        reply = Reply(text=text[:TEXT_LIMIT], key=number)
        try:
            await self._fill_deferred(DeferredReply(to.address, application, number, token, 0.0), reply)
        except Rejected:
            await self._send(to.address, reply, rendering.nonce_fields(number))
        await self._deferred.resolve(number, rendering.channel_id_of(to.address))

    async def _acknowledge(self, parts: list[str], text: str) -> bool:
        """Make the answer the first reaction; False when there was one, or it is too late."""
        first = {"type": CHANNEL_MESSAGE, "data": rendering.ephemeral_fields(text)}
        try:
            await self._post_without_token(path("interactions", parts[1], parts[2], "callback"), first)
        except Rejected:
            return False
        return True

    async def _post_without_token(self, where: str, body: Mapping[str, Any]) -> None:
        await self._api.call("POST", where, name="answer", body=body, as_bot=False)

    async def _fill_deferred(self, deferred: DeferredReply, reply: Reply) -> SentMessage:
        where = path("webhooks", deferred.application, deferred.token, "messages", "@original")
        body = rendering.message_fields(_render(reply.text), reply.buttons)
        return _parse_sent(await self._api.call("PATCH", where, name="answer", body=body, as_bot=False))

    async def _call_rendered(
        self, method: str, where: str, address: Address, extra_fields: Mapping[str, Any], reply: Reply
    ) -> Any:
        """Say it, and once more with every character shown as it is when Discord refuses the looks."""
        name, needs = ("send", _send_permission(address)) if method == "POST" else ("edit", "")
        try:
            body = {**rendering.message_fields(_render(reply.text), reply.buttons), **extra_fields}
            return await self._call(method, where, address, name=name, needs=needs, body=body)
        except Rejected as error:
            plain = markup.escape(reply.text)
            if "content" not in str(error) or len(plain) > TEXT_LIMIT:
                raise
        body = {**rendering.message_fields(plain, reply.buttons), **extra_fields}
        return await self._call(method, where, address, name=name, needs=needs, body=body)

    async def _call(self, method: str, where: str, address: Address, **others: Any) -> Any:
        """Call, and tell a bot that was thrown out from one that lacks a permission."""
        try:
            return await self._api.call(method, where, **others)
        except MissingAccess:
            if await self._is_removed_from_guild(address):
                raise Undeliverable("the bot is not in this server any more") from None
            raise

    async def _is_removed_from_guild(self, address: Address) -> bool:
        guild = address.extras.get("guild", "")
        if not guild:
            return False
        try:
            await self._api.call("GET", path("guilds", guild), name="which server")
        except UnknownResource:
            return False
        except (MissingAccess, Undeliverable):
            return True
        except ChannelError:
            return False
        return False

    async def _get_file_url(self, ref: str) -> str:
        parts = ref.split("/")
        if len(parts) != REFERENCE_PARTS or not all(part.isdecimal() for part in parts):
            raise Rejected("this names no file")
        where = path("channels", parts[0], "messages", parts[1])
        message = await self._api.call("GET", where, name="find file", needs=READ_PERMISSION)
        files = message.get("attachments") if isinstance(message, dict) else None
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and file.get("id") == parts[2] and isinstance(file.get("url"), str):
                return _url_within_limit(file)
        raise Rejected("the file is not there any more")


def _url_within_limit(file: Mapping[str, Any]) -> str:
    """Return where a file is, unless it is said to be too large to be fetched."""
    size = file.get("size")
    if isinstance(size, int) and size > DOWNLOAD_LIMIT:
        raise Rejected(f"the file has {size} bytes, more than {DOWNLOAD_LIMIT}")
    return str(file["url"])


def _send_permission(address: Address) -> str:
    return SEND_PERMISSIONS[address.thread is not None]


def _render(text: str) -> str:
    """Render the text; one that does not fit with its rendering is sent as it is."""
    rendered = markup.render(text)
    return rendered if rendered.strip() and len(rendered) <= TEXT_LIMIT else text


def _file_name(file: File) -> str:
    """Return a name that fits into the header of a form's field."""
    shown = "".join(
        one for one in text.replace_surrogates(file.name) if one.isprintable() and one not in '"\\'
    )
    return shown.strip() or "file"


def _media_type(file: File) -> str:
    kind, slash, rest = file.media_type.partition("/")
    plain = kind.isascii() and rest.isascii() and "\n" not in rest and "\r" not in rest
    return file.media_type if slash and plain else "application/octet-stream"


def _parse_sent(result: object) -> SentMessage:
    number = result.get("id") if isinstance(result, dict) else None
    if not isinstance(number, str):
        raise Ambiguous("send: the answer names no message")
    return SentMessage(platform_id=number)
