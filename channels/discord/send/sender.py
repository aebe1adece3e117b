"""Send to Discord: messages, edits, files, buttons and reactions, without retries."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import discord
import structlog

from channels.discord import payloads
from channels.discord.api import Api
from channels.discord.errors import ArchivedThread, MissingAccess, UnknownResource
from channels.discord.send import markup, rendering
from channels.discord.send.confidential import REFERENCE_PARTS, ConfidentialMessages, parse_token
from channels.discord.send.deferred_replies import DeferredReplies, DeferredReply
from channels.discord.send.rendering import TEXT_LIMIT
from channels.errors import (
    Ambiguous,
    ChannelError,
    Rejected,
    ThreadUndeliverable,
    Undeliverable,
    Unreachable,
    Unsupported,
)
from channels.inbox.calls import ensure_accepted, ensure_small, limited
from channels.inbox.text import form_file_name, form_media_type, mapping, mappings
from channels.message import (
    Address,
    ButtonPress,
    Command,
    File,
    Message,
    Reply,
    SentMessage,
    StatusReaction,
)
from channels.port import Sender
from channels.receiving.bounded_dict import BoundedDict

UPLOAD_LIMIT = 10 * 1024 * 1024
BOOSTED_LIMITS = {2: 50 * 1024 * 1024, 3: 100 * 1024 * 1024}
"""Bytes of a file in servers of these levels."""

DOWNLOAD_LIMIT = 100 * 1024 * 1024
NONCE_LENGTH = 25
PAGE_SIZE, MAX_PAGES = 100, 3
EMOJI = {
    StatusReaction.SEEN: "\N{EYES}",
    StatusReaction.DONE: "\N{WHITE HEAVY CHECK MARK}",
    StatusReaction.FAILED: "\N{CROSS MARK}",
}
MAX_REMEMBERED = 10_000
UNKNOWN_MESSAGE = "(10008)"
"""Discord's code in the error about a message that was deleted."""

CLOCK_SKEW = timedelta(minutes=1)
"""How far the local clock and Discord's may differ."""

READ_PERMISSION = "Read Message History"
SEND_PERMISSIONS = ("Send Messages", "Send Messages in Threads")

log = structlog.get_logger(__name__)


def nonce(key: str) -> str:
    """Return a delivery's nonce: its key if that is short enough, else a hash of it."""
    if 0 < len(key) <= NONCE_LENGTH:
        return key
    return base64.b32encode(sha256(key.encode()).digest()).decode().lower()[:NONCE_LENGTH]


class DiscordSender(Sender):
    """The sending half of a Discord bot."""

    def __init__(self, api: Api, deferred: DeferredReplies, *, bot: payloads.Bot) -> None:
        self._api = api
        self._deferred = deferred
        self._confidential = ConfidentialMessages(api, deferred)
        self._bot = bot
        self._reactions = BoundedDict[str, StatusReaction](MAX_REMEMBERED)

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message; Discord recognises a repetition of the delivery within minutes.

        The first answer to a slash command replaces its "is thinking…".
        """
        key = nonce(reply.key)
        filled = await self._deferred.find_filled(key)
        if filled is not None:
            return await self.edit(address, filled[1], reply)
        deferred = await self._deferred.claim(address, reply.key, key)
        if deferred is not None:
            try:
                return await self._fill_deferred(deferred, reply)
            except Rejected:  # the token expired, or the content is refused: a normal send decides
                self._deferred.delete_claim(reply.key)
        return await self._send(address, reply, key)

    async def _send(self, address: Address, reply: Reply, key: str) -> SentMessage:
        def send(text: str) -> Awaitable[Any]:
            message = rendering.message(text, reply.buttons, nonce=key, reply_to=reply.reply_to)
            return self._api.bot.send_message(rendering.channel_id_of(address), params=message)

        return _parse_sent(
            await self._call_rendered(
                send, address, reply, name="send", needs=SEND_PERMISSIONS[address.thread is not None]
            )
        )

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Edit one of the bot's messages; raises Rejected if only a new message can show the text."""

        def edit(text: str) -> Awaitable[Any]:
            message = rendering.message(text, reply.buttons)
            channel = rendering.channel_id_of(address)
            return self._api.bot.edit_message(channel, platform_id, params=message)

        try:
            await self._call_rendered(edit, address, reply, name="edit")
        except ArchivedThread as error:
            raise Rejected(str(error)) from None
        return SentMessage(platform_id=platform_id)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages."""
        channel = rendering.channel_id_of(address)
        try:
            await self._call(self._api.bot.delete_message(channel, platform_id), address, name="delete")
        except Rejected as error:
            if UNKNOWN_MESSAGE not in str(error):
                raise

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Find the bot's message with the key's nonce; raises Unsupported if nonces are hidden."""
        expected = nonce(key)
        filled = await self._deferred.find_filled(expected)
        if filled is not None:
            return SentMessage(platform_id=filled[1])
        after, is_certain = payloads.time_snowflake(since - CLOCK_SKEW), True
        for _ in range(MAX_PAGES):
            page = await self._page(address, after)
            own = [message for message in page if self._is_ours(message)]
            matching = [message for message in own if message.get("nonce") == expected]
            if matching:
                return _parse_sent(matching[0])
            is_certain &= all(message.get("nonce") or "interaction_metadata" in message for message in own)
            if len(page) < PAGE_SIZE:
                break
            after = max(int(message["id"]) for message in page)
        else:
            is_certain = False
        if not is_certain:
            raise Unsupported("find: Discord does not show the nonces of messages here")
        return None

    async def _page(self, address: Address, after: int) -> list[Mapping[str, Any]]:
        history = self._api.bot.logs_from(rendering.channel_id_of(address), PAGE_SIZE, after=after)
        try:
            page: object = await self._call(history, address, name="find", needs=READ_PERMISSION)
        except UnknownResource:
            raise Unsupported("find: this channel has no history") from None
        if not isinstance(page, list):
            raise Unreachable("find: the response is no list of messages")
        return [message for message in mappings(page) if str(message.get("id")).isdecimal()]

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        return bool(mapping(message.get("author")).get("id") == self._bot.id)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message and remove its earlier one."""
        previous = self._reactions.pop(platform_id, None)
        if reaction is not None:
            place = rendering.channel_id_of(address), platform_id, EMOJI[reaction]
            await self._call(self._api.bot.add_reaction(*place), address, name="react", needs="Add Reactions")
            self._reactions[platform_id] = reaction
        if previous is None and reaction is StatusReaction.SEEN:  # SEEN is always the first
            return
        for old in EMOJI if previous is None else (previous,):
            if old is not reaction:
                await self._remove_reaction(address, platform_id, old)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction to a message, beside the status reaction."""
        place = rendering.channel_id_of(address), platform_id, emoji
        await self._call(self._api.bot.add_reaction(*place), address, name="react", needs="Add Reactions")

    async def _remove_reaction(self, address: Address, message: str, reaction: StatusReaction) -> None:
        place = rendering.channel_id_of(address), message, EMOJI[reaction]
        with suppress(Rejected):  # it was removed already
            await self._call(self._api.bot.remove_own_reaction(*place), address, name="react")

    async def typing(self, address: Address) -> None:
        """Show "typing" for about ten seconds."""
        typing = self._api.bot.send_typing(rendering.channel_id_of(address))
        await self._call(typing, address, name="typing", needs=SEND_PERMISSIONS[address.thread is not None])

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as an attachment."""
        if len(file.content) > UPLOAD_LIMIT:
            ensure_accepted(file, await self._boosted_limit(address))
        attachment = discord.File(io.BytesIO(file.content), form_file_name(file.name))
        with rendering.message(file.caption[:TEXT_LIMIT], nonce=nonce(key), files=(attachment,)) as message:
            for part in (message.multipart or ())[1:]:
                part["content_type"] = form_media_type(file.media_type)
            send = self._api.bot.send_message(rendering.channel_id_of(address), params=message)
            return _parse_sent(await self._call(send, address, name="upload", needs="Attach Files"))

    async def _boosted_limit(self, address: Address) -> int:
        """Return the bytes of a file that a room accepts: people may have boosted its server."""
        guild = address.extras.get("guild")
        about = await self._call(self._api.bot.get_guild(guild), address, name="server") if guild else None
        return BOOSTED_LIMITS.get(mapping(about).get("premium_tier", 0), UPLOAD_LIMIT)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; its URL is requested first, because URLs expire after a day."""
        async for chunk in limited(self._api.fetch(await self._get_file_url(ref)), DOWNLOAD_LIMIT):
            yield chunk

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Show a notice to the user who pressed; a command's deferred reply is filled.

        While the press or command is still being accepted, the answer is also its acknowledgement.
        """
        parts = parse_token(to.token)
        is_accepting = self._deferred.is_accepting(parts[1])
        if await self._confidential.respond(parts, text, lambda: self._reply_later(to, parts, text)):
            return
        await self._reply_later(to, parts, text)
        if is_accepting and isinstance(to, Command):
            self._deferred.mark_acknowledged(parts[1])  # "is thinking…" would stay below the answer

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Answer a slash command in its initial response; write to the person's private conversation else."""
        await self._confidential.reply(to, text)

    async def _reply_later(self, to: ButtonPress | Command, parts: list[str], text: str) -> None:
        """Answer after the initial response, or in its place if that was missed."""
        if isinstance(to, Command):
            await self._reply_to_command(to, parts, text)
        else:
            await self._reply_to_press(parts, text)

    async def _reply_to_press(self, parts: list[str], text: str) -> None:
        """Send a private notice; acknowledge the press with it if nothing else did."""
        try:
            follow_up = self._api.interactions.follow_up(parts[0], parts[2], rendering.notice(text))
            await self._api.call(follow_up, name="answer")
        except Rejected:
            if not await self._confidential.acknowledge(parts, text):
                raise

    async def _reply_to_command(self, to: Command, parts: list[str], text: str) -> None:
        """Fill the deferred reply; once its token has expired, send to the channel."""
        application, number, token = parts
        reply = Reply(text=text[:TEXT_LIMIT], key=number)
        try:
            await self._fill_deferred(DeferredReply(to.address, application, number, token, 0.0), reply)
        except (Rejected, Unreachable):
            await self._send(to.address, reply, number)
        await self._deferred.resolve(number, rendering.channel_id_of(to.address))

    async def _fill_deferred(self, deferred: DeferredReply, reply: Reply) -> SentMessage:
        message = rendering.message(_render(reply.text), reply.buttons)
        fill = self._api.interactions.edit_original(deferred.application, deferred.token, message)
        return _parse_sent(await self._api.call(fill, name="answer"))

    async def _call_rendered(
        self, call: Callable[[str], Awaitable[Any]], address: Address, reply: Reply, **others: str
    ) -> Any:
        """Send it rendered, and once more fully escaped if Discord refuses the content."""
        try:
            return await self._call(call(_render(reply.text)), address, **others)
        except Rejected as error:
            plain = markup.escape(reply.text)
            if "content" not in str(error) or len(plain) > TEXT_LIMIT:
                raise
        return await self._call(call(plain), address, **others)

    async def _call(self, request: Awaitable[Any], address: Address, **others: str) -> Any:
        """Call; raise Undeliverable instead of MissingAccess if the bot was removed from the server.

        To Discord a thread is a channel of its own: what it refuses concerns the thread alone.
        """
        try:
            return await self._api.call(request, **others)
        except Undeliverable as error:
            if address.thread is not None and not isinstance(error, ArchivedThread):
                raise ThreadUndeliverable(str(error)) from None
            raise
        except MissingAccess:
            if await self._is_removed_from_guild(address):
                raise Undeliverable("the bot is not in this server any more") from None
            raise

    async def _is_removed_from_guild(self, address: Address) -> bool:
        guild = address.extras.get("guild", "")
        if not guild:
            return False
        try:
            await self._api.call(self._api.bot.get_guild(guild), name="server")
        except (MissingAccess, Undeliverable):
            return True
        except ChannelError:
            return False
        return False

    async def _get_file_url(self, ref: str) -> str:
        parts = ref.split("/")
        if len(parts) != REFERENCE_PARTS or not all(part.isdecimal() for part in parts):
            raise Rejected("the file reference is malformed")
        request = self._api.bot.get_message(parts[0], parts[1])
        message = mapping(await self._api.call(request, name="find file", needs=READ_PERMISSION))
        forwarded = [mapping(one.get("message")) for one in mappings(message.get("message_snapshots"))]
        for file in (file for one in (message, *forwarded) for file in mappings(one.get("attachments"))):
            if file.get("id") == parts[2] and isinstance(file.get("url"), str):
                ensure_small(file.get("size"), DOWNLOAD_LIMIT)
                return str(file["url"])
        raise Rejected("the file no longer exists")


def _render(text: str) -> str:
    """Render the text; if the result is too long, send the source unchanged."""
    rendered = markup.render(text)
    return rendered if rendered.strip() and len(rendered) <= TEXT_LIMIT else text


def _parse_sent(result: object) -> SentMessage:
    number = result.get("id") if isinstance(result, dict) else None
    if not isinstance(number, str):
        raise Ambiguous("send: the response names no message")
    return SentMessage(platform_id=number)
