"""Read the messages of rooms that were missed while the bot was not connected.

Discord replays a broken connection's events for a short time only. After that, and after a restart, each room
whose last message is newer than its read marker is read once. A message that was read may also arrive by the
gateway; it is accepted once, and a repetition after a restart has the same key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog

from channels.discord import payloads
from channels.discord.api import Api
from channels.discord.errors import UnknownResource
from channels.discord.receive import codec
from channels.errors import NotPermitted, Rejected, Undeliverable
from channels.inbox.text import mapping
from channels.receiving.asked_once import AskedOnce
from channels.receiving.attempts import attempt
from channels.receiving.bounded_dict import BoundedDict
from channels.receiving.histories import IsOwn, after_own, messages_of, read_pages
from channels.receiving.read_markers import ReadMarker, ReadMarkers

Raw = Mapping[str, Any]

READABLE_TYPES = frozenset({0, 2, 5, 13, *codec.THREAD_TYPES})
"""Channel types that hold messages (a forum holds threads)."""

PAGE_SIZE = 100
MAX_PAGES = 10
MAX_REMEMBERED = 10_000
OVERLAP, MAX_BACKFILL = timedelta(minutes=5), timedelta(days=7)
"""How far before the newest accepted message new rooms are read, and how far back at most."""

UNREADABLE_ERRORS = (Undeliverable, Rejected, UnknownResource, NotPermitted)
"""Errors of reading one room that say nothing about other rooms."""

log = structlog.get_logger(__name__)


class ChannelTypes:
    """The type of each channel; requested once if no event contained it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._channels = AskedOnce(self._ask, never=UNREADABLE_ERRORS)

    def remember(self, channel: object) -> None:
        """Remember a channel from an event."""
        if isinstance(channel, dict) and isinstance(channel.get("id"), str):
            self._channels.remember(channel["id"], _type_of(channel))

    def is_thread(self, channel: str) -> bool:
        """Return whether a channel is known to be a thread."""
        return mapping(self._channels.known(channel)).get("type") in codec.THREAD_TYPES

    async def get(self, channel: str) -> Raw | None:
        """Return a channel's id, type and parent; None if Discord does not state them, or not now.

        Raises ChannelError if no channel can be read.
        """
        known = mapping(await self._channels.get(channel))
        return known if isinstance(known.get("type"), int) else None

    async def _ask(self, channel: str) -> Raw:
        return _type_of(await self._api.call(self._api.bot.get_channel(channel), name="which channel"))


def _type_of(channel: object) -> Raw:
    return {name: mapping(channel).get(name) for name in ("id", "type", "parent_id", "name")}


class Backfill:
    """Decides which rooms must be read, and reads them."""

    def __init__(self, api: Api, minutes: int, markers: ReadMarkers, is_own: IsOwn) -> None:
        self._api = api
        self._is_own = is_own
        self._minutes = minutes
        self._session = ""
        self._default_start = 0
        self._is_first = False
        self._emitted = BoundedDict[str, None](MAX_REMEMBERED)
        self._read_channels: set[str] = set()
        self.markers = markers

    def begin(self, session: str) -> None:
        """Begin a session, after which rooms must be read again; the same session changes nothing."""
        if session and session == self._session:
            return
        self._session = session
        self._is_first = self.markers.newest() is None
        self._default_start = self._first_missed(datetime.now(UTC))
        self._read_channels.clear()

    def _first_missed(self, now: datetime) -> int:
        """Return where reading a new room starts: shortly before the newest accepted message."""
        newest = self.markers.newest()
        if newest is None:
            return payloads.time_snowflake(now - timedelta(minutes=self._minutes))
        return payloads.time_snowflake(
            max(payloads.snowflake_time(str(newest)) - OVERLAP, now - MAX_BACKFILL)
        )

    def record_accepted(self, room: str, message: str, marker: ReadMarker, *, read: bool = False) -> bool:
        """Record an accepted message; `read` marks one that may also arrive by the gateway."""
        if read:
            self._emitted[message] = None
        return self.markers.update(room, marker)

    def is_emitted(self, message: str) -> bool:
        """Return whether a message was already read."""
        return message in self._emitted

    def has_unread(self, channel: Raw, joined: int = 0) -> bool:
        """Return whether a channel holds messages after its read marker."""
        last = str(channel.get("last_message_id") or "")
        readable = channel.get("type") in READABLE_TYPES and last.isdecimal()
        room = str(channel.get("id"))
        return readable and self.is_unread(room) and int(last) > max(self._last_read(room), joined)

    def is_unread(self, channel: str) -> bool:
        """Return whether a room has not been read since the session began."""
        return self._minutes > 0 and channel not in self._read_channels

    def first_unread(self, channel: str, joined: int = 0) -> int:
        """Return the id after which the missed messages of a room begin."""
        return max(self._last_read(channel), joined)

    async def messages(self, channel: str, after: int) -> AsyncIterator[Raw]:
        """Yield the messages of a room after an id, in order; then the room counts as read.

        Those of a new channel begin after the bot's last message. Raises ChannelError if the room cannot be
        read now.
        """
        limit = MAX_PAGES if self._minutes else 0
        history = read_pages(partial(self._page, channel), after, size=PAGE_SIZE, limit=limit)
        async for message in after_own(history, self._is_own) if self._is_first else history:
            yield message
        self._read_channels.add(channel)

    def skip(self, channel: str) -> None:
        """Count a room as read in this session, because it is read later."""
        self._read_channels.add(channel)

    def _last_read(self, channel: str) -> int:
        last = self.markers.last(channel)
        return self._default_start if last is None else last

    async def _page(self, channel: str, after: int) -> list[Raw]:
        async def read() -> object:
            history = self._api.bot.logs_from(channel, PAGE_SIZE, after=after)
            return await self._api.call(history, name="read history", needs="Read Message History")

        try:
            page = await attempt(read)
        except UNREADABLE_ERRORS as error:
            log.info("discord.channel_backfill_skipped", error=str(error))
            return []
        return messages_of(page)
