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
from channels.discord.errors import NoAccess, NotThere
from channels.discord.payloads import SAY
from channels.discord.send import markup, rendering
from channels.discord.send.deferred_replies import Deferred, Place
from channels.discord.send.rendering import TEXT_LIMIT
from channels.errors import Ambiguous, ChannelError, Rejected, Undeliverable, Unsupported
from channels.message import Address, Command, File, Press, Reply, Sent, Sign
from channels.port import Channel

UPLOAD_LIMIT = 10 * 1024 * 1024
DOWNLOAD_LIMIT = 100 * 1024 * 1024
NONCE_LENGTH = 25
REFERENCE_PARTS = 3
PAGE, MOST_PAGES = 100, 3
SIGNS = {Sign.SEEN: "\N{EYES}", Sign.DONE: "\N{WHITE HEAVY CHECK MARK}", Sign.FAILED: "\N{CROSS MARK}"}
SIGNS_KEPT = 10_000
SKEW = timedelta(minutes=1)
"""How far Discord's clock and ours may differ."""

READING = "Read Message History"
SPEAKING = ("Send Messages", "Send Messages in Threads")


def nonce(key: str) -> str:
    """Return a delivery's nonce: its key where that is short enough, else what spreads over all of it."""
    if 0 < len(key) <= NONCE_LENGTH:
        return key
    return base64.b32encode(sha256(key.encode()).digest()).decode().lower()[:NONCE_LENGTH]


class DiscordChannel(Channel):
    """The sending half of a Discord bot."""

    def __init__(self, api: Api, deferred: Deferred, *, bot: payloads.Bot) -> None:
        self._api = api
        self._deferred = deferred
        self._bot = bot
        self._signs: OrderedDict[str, Sign] = OrderedDict()

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message; a repetition of the same delivery within minutes is recognised by Discord.

        The first answer to a slash command takes the place of its "is thinking…".
        """
        key = nonce(reply.key)
        before = await self._deferred.filled_before(key)
        if before is not None:
            return await self.edit(address, before[1], reply)
        waiting = await self._deferred.take(address, reply.key, key)
        if waiting is not None:
            try:
                return await self._fill(waiting, reply)
            except Rejected:  # its time is over, or a text that is refused here is judged there
                self._deferred.drop(reply.key)
        return await self._send(address, reply, rendering.once(key))

    async def _send(self, address: Address, reply: Reply, once: Mapping[str, Any]) -> Sent:
        where = path("channels", rendering.place(address), "messages")
        return _sent(await self._say("POST", where, address, {**once, **rendering.answering(reply)}, reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else."""
        where = path("channels", rendering.place(address), "messages", platform_id)
        await self._say("PATCH", where, address, {}, reply)
        return Sent(platform_id=platform_id)

    async def find(self, address: Address, key: str, *, since: datetime) -> Sent | None:
        """Look for a message of ours with the key's nonce; raises Unsupported where nonces are not shown."""
        wanted = nonce(key)
        before = await self._deferred.filled_before(wanted)
        if before is not None:
            return Sent(platform_id=before[1])
        after, is_certain = payloads.snowflake(since - SKEW), True
        for _ in range(MOST_PAGES):
            page = await self._page(address, after)
            ours = [one for one in page if self._is_ours(one)]
            found = [one for one in ours if one.get("nonce") == wanted]
            if found:
                return _sent(found[0])
            is_certain &= all("nonce" in one or "interaction_metadata" in one for one in ours)
            if len(page) < PAGE:
                break
            after = max(int(message["id"]) for message in page)
        else:
            is_certain = False
        if not is_certain:
            raise Unsupported("find: Discord does not show here which messages are whose")
        return None

    async def _page(self, address: Address, after: int) -> list[dict[str, Any]]:
        where = path("channels", rendering.place(address), "messages")
        query = f"after={after}&limit={PAGE}"
        try:
            found = await self._call("GET", where, address, name="find", needs=READING, query=query)
        except NotThere:
            raise Unsupported("find: there is no history to look into") from None
        listed = found if isinstance(found, list) else []
        return [one for one in listed if isinstance(one, dict) and str(one.get("id")).isdecimal()]

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        author = message.get("author")
        return isinstance(author, dict) and author.get("id") == self._bot.id

    async def react(self, address: Address, platform_id: str, sign: Sign | None) -> None:
        """Put our sign under a message; one of ours that is there goes."""
        before = self._signs.pop(platform_id, None)
        if sign is not None:
            await self._sign("PUT", address, platform_id, sign)
            self._signs[platform_id] = sign
            if len(self._signs) > SIGNS_KEPT:
                self._signs.popitem(last=False)
        if before is None and sign is Sign.SEEN:  # the first of all
            return
        for old in SIGNS if before is None else (before,):
            if old is not sign:
                await self._sign("DELETE", address, platform_id, old)

    async def _sign(self, method: str, address: Address, message: str, sign: Sign) -> None:
        where = path(
            "channels", rendering.place(address), "messages", message, "reactions", SIGNS[sign], "@me"
        )
        try:
            await self._call(method, where, address, name="react", needs="Add Reactions")
        except Rejected:
            if method != "DELETE":  # what is not there is gone
                raise

    async def typing(self, address: Address) -> None:
        """Show "typing" for about ten seconds."""
        where = path("channels", rendering.place(address), "typing")
        await self._call("POST", where, address, name="typing", needs=_speaking(address))

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Send a file as an attachment."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, Discord takes {UPLOAD_LIMIT}")
        name = _name_of(file)
        described = {
            **rendering.once(nonce(key)),
            **rendering.said(file.caption[:TEXT_LIMIT]),
            "attachments": [{"id": 0, "filename": name}],
        }
        form = aiohttp.FormData(quote_fields=False)  # Discord takes names as they are, in UTF-8
        form.add_field("payload_json", json.dumps(described), content_type="application/json")
        form.add_field("files[0]", file.content, filename=name, content_type=_type_of(file))
        where = path("channels", rendering.place(address), "messages")
        return _sent(await self._call("POST", where, address, name="upload", needs="Attach Files", form=form))

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; its address is asked for first, because addresses end after a day."""
        size = 0
        async for chunk in self._api.fetch(await self._locate(ref)):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a notice to the person who pressed, and to nobody else; a command is answered in its place.

        While the press or command is still being accepted, the answer is its acknowledgement.
        """
        parts = to.token.split("/")
        if len(parts) != REFERENCE_PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
            raise Rejected("this cannot be answered")
        if self._deferred.is_accepting(parts[1]) and await self._acknowledge(parts, text):
            self._deferred.acknowledge(parts[1])
        elif isinstance(to, Command):
            await self._answer_command(to, parts, text)
        else:
            await self._answer_press(parts, text)

    async def _answer_press(self, parts: list[str], text: str) -> None:
        """Say it beside the message; a press that nobody acknowledged is acknowledged so."""
        try:
            await self._post_unsigned(path("webhooks", parts[0], parts[2]), rendering.notice(text))
        except Rejected:
            if not await self._acknowledge(parts, text):
                raise

    async def _answer_command(self, to: Command, parts: list[str], text: str) -> None:
        """Fill the command's place; when its token has ended, the bot says it in the channel."""
        application, number, token = parts
        reply = Reply(text=text[:TEXT_LIMIT], key=number)
        try:
            await self._fill(Place(to.address, application, number, token, 0.0), reply)
        except Rejected:
            await self._send(to.address, reply, rendering.once(number))
        await self._deferred.settle(number, rendering.place(to.address))

    async def _acknowledge(self, parts: list[str], text: str) -> bool:
        """Make the answer the first reaction; False when there was one, or it is too late."""
        first = {"type": SAY, "data": rendering.notice(text)}
        try:
            await self._post_unsigned(path("interactions", parts[1], parts[2], "callback"), first)
        except Rejected:
            return False
        return True

    async def _post_unsigned(self, where: str, body: Mapping[str, Any]) -> None:
        await self._api.call("POST", where, name="answer", body=body, as_bot=False)

    async def _fill(self, waiting: Place, reply: Reply) -> Sent:
        where = path("webhooks", waiting.application, waiting.token, "messages", "@original")
        body = rendering.said(_worded(reply.text), reply.buttons)
        return _sent(await self._api.call("PATCH", where, name="answer", body=body, as_bot=False))

    async def _say(
        self, method: str, where: str, address: Address, place: Mapping[str, Any], reply: Reply
    ) -> Any:
        """Say it, and once more with every character shown as it is when Discord refuses the looks."""
        name, needs = ("send", _speaking(address)) if method == "POST" else ("edit", "")
        try:
            body = {**rendering.said(_worded(reply.text), reply.buttons), **place}
            return await self._call(method, where, address, name=name, needs=needs, body=body)
        except Rejected as error:
            plain = markup.escape(reply.text)
            if "content" not in str(error) or len(plain) > TEXT_LIMIT:
                raise
        body = {**rendering.said(plain, reply.buttons), **place}
        return await self._call(method, where, address, name=name, needs=needs, body=body)

    async def _call(self, method: str, where: str, address: Address, **others: Any) -> Any:
        """Call, and tell a bot that was thrown out from one that lacks a permission."""
        try:
            return await self._api.call(method, where, **others)
        except NoAccess:
            if await self._is_thrown_out(address):
                raise Undeliverable("the bot is not in this server any more") from None
            raise

    async def _is_thrown_out(self, address: Address) -> bool:
        guild = address.extras.get("guild", "")
        if not guild:
            return False
        try:
            await self._api.call("GET", path("guilds", guild), name="which server")
        except NotThere:
            return False
        except (NoAccess, Undeliverable):
            return True
        except ChannelError:
            return False
        return False

    async def _locate(self, ref: str) -> str:
        parts = ref.split("/")
        if len(parts) != REFERENCE_PARTS or not all(part.isdecimal() for part in parts):
            raise Rejected("this names no file")
        where = path("channels", parts[0], "messages", parts[1])
        message = await self._api.call("GET", where, name="find file", needs=READING)
        files = message.get("attachments") if isinstance(message, dict) else None
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and file.get("id") == parts[2] and isinstance(file.get("url"), str):
                return _bounded(file)
        raise Rejected("the file is not there any more")


def _bounded(file: Mapping[str, Any]) -> str:
    """Return where a file is, unless it is said to be too large to be fetched."""
    size = file.get("size")
    if isinstance(size, int) and size > DOWNLOAD_LIMIT:
        raise Rejected(f"the file has {size} bytes, more than {DOWNLOAD_LIMIT}")
    return str(file["url"])


def _speaking(address: Address) -> str:
    return SPEAKING[address.thread is not None]


def _worded(text: str) -> str:
    """Render the text; one that does not fit with its rendering is sent as it is."""
    rendered = markup.render(text)
    return rendered if rendered.strip() and len(rendered) <= TEXT_LIMIT else text


def _name_of(file: File) -> str:
    """Return a name that fits into the header of a form's field."""
    shown = "".join(one for one in text.encodable(file.name) if one.isprintable() and one not in '"\\')
    return shown.strip() or "file"


def _type_of(file: File) -> str:
    kind, slash, rest = file.media_type.partition("/")
    plain = kind.isascii() and rest.isascii() and "\n" not in rest and "\r" not in rest
    return file.media_type if slash and plain else "application/octet-stream"


def _sent(result: object) -> Sent:
    number = result.get("id") if isinstance(result, dict) else None
    if not isinstance(number, str):
        raise Ambiguous("send: the answer names no message")
    return Sent(platform_id=number)
