"""What each event of the gateway means for us: places are learned, history is read, updates accepted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from channels.discord import payloads
from channels.discord.api import Api, path
from channels.discord.receive import codec
from channels.discord.receive.backfill import History, Places
from channels.discord.receive.interactions import reaction
from channels.discord.receive.read_markers import Mark, Seen
from channels.discord.send.deferred_replies import Deferred
from channels.errors import ChannelError
from channels.message import Ignored, Update
from channels.port import Accept, Notes

CALLBACK_PATIENCE = 3.0
"""Seconds Discord waits for the first reaction to an interaction."""

CLOSING_PATIENCE = 0.5
MOST_PRIVATE = 200
MOST_THREADS = 50
"""Rooms that Discord does not list and that are read after a downtime, the latest first."""

Raw = Mapping[str, Any]
log = logging.getLogger(__name__)


class _NotStoredError(Exception):
    """An update could not be accepted; its event has to be taken again."""


class Listener:
    """Takes events, one after the other."""

    def __init__(
        self, api: Api, notes: Notes, *, channel: str, bot: payloads.Bot, deferred: Deferred, minutes: int
    ) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._deferred = deferred
        self._places = Places(api)
        self._seen = Seen(notes)
        self._history = History(api, minutes, self._seen)

    async def take(self, event: Raw, accept: Accept) -> bool:
        """Take one event; False when something of it could not be stored. Raises ChannelError.

        An event that makes no sense is left out: it never ends the connection, nor comes again.
        """
        try:
            await self._follow(event, accept)
            await self._seen.keep()
        except _NotStoredError:
            return False
        except ChannelError:
            raise
        except Exception:  # whatever is odd about an event, those after it count
            log.exception("discord: an event that makes no sense is left out: %s", str(event.get("t"))[:80])
        return True

    async def close(self) -> None:
        """Note how far the rooms are read, if that can be done soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_PATIENCE):
                await self._seen.keep(at_once=True)

    async def _follow(self, event: Raw, accept: Accept) -> None:
        content = event.get("d")
        if not isinstance(content, dict):
            return
        match event.get("t"):
            case "READY":
                await self._begin(str(content.get("session_id") or ""), accept)
            case "GUILD_CREATE":
                await self._catch_up(content, accept)
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
                self._places.learn(content)
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                await self._hear(event, content, accept)
            case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE":
                await self._see(event, content, accept)
            case "INTERACTION_CREATE":
                await self._react(event, content, accept)

    async def _begin(self, session: str, accept: Accept) -> None:
        """Read the private conversations, which Discord does not list."""
        try:
            await self._seen.read()
            await self._deferred.sweep()
        except Exception as error:  # a store of any kind is behind it
            log.warning("discord: the notes cannot be read: %r", error)
            raise _NotStoredError from error
        self._history.begin(session)
        for channel in self._seen.private(MOST_PRIVATE):
            if self._history.is_unread(channel):
                await self._read(channel, None, 0, accept)

    async def _catch_up(self, guild: Raw, accept: Accept) -> None:
        """Read the channels of a server that hold more than we know; nothing from before we came."""
        joined, number, listed = _joined(guild), guild.get("id"), set()
        for kind in ("channels", "threads"):
            found = guild.get(kind)
            for channel in found if isinstance(found, list) else ():
                self._places.learn(channel)
                if isinstance(channel, dict) and isinstance(channel.get("id"), str):
                    listed.add(channel["id"])
                    if self._history.wants(channel, joined):
                        await self._read(channel["id"], number, joined, accept)
        for thread in self._seen.threads(str(number), MOST_THREADS):
            if thread not in listed and self._history.is_unread(thread):  # it was archived meanwhile
                await self._read(thread, number, joined, accept)

    async def _read(
        self, channel: str, guild: object, joined: int, accept: Accept, *, before: int | None = None
    ) -> None:
        async for message in self._history.messages(channel, joined):
            number = message["id"]
            if (before is None or int(number) < before) and not self._history.was_told(number):
                raw = {**message, "channel_id": channel, "guild_id": guild}
                await self._tell({"t": "MESSAGE_CREATE", "d": await self._placed(raw)}, accept)
                await self._saw(raw, read=True)

    async def _hear(self, event: Raw, message: Raw, accept: Accept) -> None:
        number, channel = message.get("id"), message.get("channel_id")
        if not (isinstance(number, str) and isinstance(channel, str) and number.isdecimal()):
            log.warning("discord: a message without an id is left out")
            return
        is_new = event.get("t") == "MESSAGE_CREATE"
        if is_new and self._history.was_told(number):
            return
        is_private = message.get("guild_id") is None
        if is_private and is_new and self._history.is_unread(channel):
            await self._read(channel, None, 0, accept, before=int(number))
        await self._tell({**event, "d": await self._placed(message)}, accept)
        if is_new:
            await self._saw(message)
            if _author(message) == self._bot.id and "interaction_metadata" not in message:
                await self._deferred.release(channel)

    async def _saw(self, message: Raw, *, read: bool = False) -> None:
        """Remember a message that was accepted; a room that was not known is noted at once."""
        room, number, guild = str(message["channel_id"]), str(message["id"]), message.get("guild_id")
        mark = Mark(
            message=int(number),
            guild=guild if isinstance(guild, str) else "",
            is_thread=self._places.is_thread(room),
        )
        is_new_room = self._history.saw(room, number, mark, read=read)
        if is_new_room and (mark.is_thread or not mark.guild):
            await self._seen.keep(at_once=True)

    async def _see(self, event: Raw, sign: Raw, accept: Accept) -> None:
        """Tell of a reaction, unless it is our own."""
        channel = sign.get("channel_id")
        if isinstance(channel, str) and channel.isdecimal() and sign.get("user_id") != self._bot.id:
            await self._tell({**event, "d": await self._placed(sign)}, accept)

    async def _placed(self, raw: Raw) -> Raw:
        """Add what kind of place a message was said in."""
        if raw.get("guild_id") is None:
            return raw
        return {**raw, "channel": await self._places.find(str(raw["channel_id"]))}

    async def _tell(self, event: Raw, accept: Accept) -> Update | Ignored:
        decoded = codec.decode(event, channel=self._channel, bot=self._bot)
        if isinstance(decoded, Ignored):
            log.debug("discord: ignored %s", decoded.reason)
            return decoded
        try:
            await accept(decoded)
        except Exception as error:
            log.warning("discord: update %s is not stored and comes again: %r", decoded.key, error)
            raise _NotStoredError from error
        return decoded

    async def _react(self, event: Raw, interaction: Raw, accept: Accept) -> None:
        """Accept, then tell Discord that the answer follows; if that fails the answer still comes."""
        number, token = interaction.get("id"), interaction.get("token")
        if not (isinstance(number, str) and isinstance(token, str)):
            return
        self._deferred.accepting(number)
        try:
            decoded = await self._tell(event, accept)
        finally:
            is_answered = self._deferred.accepted(number)
        body = reaction(interaction, decoded)
        if body is None or is_answered:
            return
        where = path("interactions", number, token, "callback")
        try:
            await self._api.call(
                "POST", where, name="react", body=body, as_bot=False, patience=CALLBACK_PATIENCE
            )
        except ChannelError as error:
            log.warning("discord: an interaction was taken and could not be acknowledged: %s", error)
            return
        await self._deferred.acknowledged(decoded, interaction)


def _author(message: Raw) -> str | None:
    author = message.get("author")
    return author.get("id") if isinstance(author, dict) else None


def _joined(guild: Raw) -> int:
    try:
        return payloads.snowflake(datetime.fromisoformat(str(guild.get("joined_at"))))
    except (ValueError, OverflowError):
        return 0
