"""What was said while nothing was received: rooms are read from the last message that is known.

Discord replays a broken connection's events only for a short while. After that, and after a restart, each
room whose last message is newer than what is known is read once. What is read may also come by the
gateway; it is told once, and a repetition after a restart has the same key.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.discord import payloads
from channels.discord.api import Api, path
from channels.discord.errors import UnknownResource
from channels.discord.receive import codec
from channels.discord.receive.read_markers import ReadMarker, ReadMarkers
from channels.errors import NotPermitted, Rejected, Undeliverable

Raw = Mapping[str, Any]

READABLE_TYPES = frozenset({0, 2, 5, 13, *codec.THREAD_TYPES})
"""Kinds of channel that hold messages (a forum holds threads)."""

PAGE_SIZE = 100
MAX_PAGES = 10
MAX_REMEMBERED = 10_000
OVERLAP, MAX_BACKFILL = timedelta(minutes=5), timedelta(days=7)
"""How far before the last message heard anywhere rooms are read that are new, and how far back at most."""

UNREADABLE_ERRORS = (Undeliverable, Rejected, UnknownResource, NotPermitted)
"""What reading a room may meet that says nothing about the others."""

log = logging.getLogger(__name__)


class ChannelTypes:
    """What kind of place each channel is; asked for once where no event told it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: OrderedDict[str, Raw] = OrderedDict()

    def remember(self, channel: object) -> None:
        """Remember a channel from an event."""
        if isinstance(channel, dict) and isinstance(channel.get("id"), str):
            kept = {name: channel.get(name) for name in ("id", "type", "parent_id")}
            self._known[channel["id"]] = kept
            _evict(self._known)

    def is_thread(self, channel: str) -> bool:
        """Whether a channel is known as a thread."""
        return self._known.get(channel, {}).get("type") in codec.THREAD_TYPES

    async def get(self, channel: str) -> Raw | None:
        """Return what a channel is, None when Discord does not tell."""
        if channel not in self._known:
            try:
                self.remember(await self._api.call("GET", path("channels", channel), name="which channel"))
            except UNREADABLE_ERRORS:
                self.remember({"id": channel})
        found = self._known.get(channel)
        return found if found and isinstance(found.get("type"), int) else None


class Backfill:
    """How far each room is known, and what has to be read."""

    def __init__(self, api: Api, minutes: int, markers: ReadMarkers) -> None:
        self._api = api
        self._minutes = minutes
        self._session = ""
        self._default_start = 0
        self._emitted: OrderedDict[str, None] = OrderedDict()
        self._read_channels: set[str] = set()
        self.markers = markers

    def begin(self, session: str) -> None:
        """A new session: what was said before it has to be read. The same one again changes nothing."""
        if session and session == self._session:
            return
        self._session = session
        self._default_start = self._first_missed(datetime.now(UTC))
        self._read_channels.clear()

    def _first_missed(self, now: datetime) -> int:
        """Return from where rooms are read that were never heard of: from what was heard last anywhere."""
        newest = self.markers.newest()
        if newest is None:
            return payloads.time_snowflake(now - timedelta(minutes=self._minutes))
        return payloads.time_snowflake(
            max(payloads.snowflake_time(str(newest)) - OVERLAP, now - MAX_BACKFILL)
        )

    def record_accepted(self, room: str, message: str, marker: ReadMarker, *, read: bool = False) -> bool:
        """Remember a message that was accepted, and one that may come by the gateway too."""
        if read:
            self._emitted[message] = None
            _evict(self._emitted)
        return self.markers.update(room, marker)

    def is_emitted(self, message: str) -> bool:
        """Whether a message was read already."""
        return message in self._emitted

    def has_unread(self, channel: Raw, joined: int = 0) -> bool:
        """Whether a channel holds something that is not known."""
        last = str(channel.get("last_message_id") or "")
        readable = channel.get("type") in READABLE_TYPES and last.isdecimal()
        place = str(channel.get("id"))
        return readable and self.is_unread(place) and int(last) > max(self._last_read(place), joined)

    def is_unread(self, channel: str) -> bool:
        """Whether a room was not looked at since the session began."""
        return self._minutes > 0 and channel not in self._read_channels

    async def messages(self, channel: str, joined: int = 0) -> AsyncIterator[Raw]:
        """Yield what was said since, in order; afterwards the room counts as read."""
        after = max(self._last_read(channel), joined)
        for _ in range(MAX_PAGES if self._minutes else 0):
            page = await self._page(channel, after)
            for message in page:
                yield message
            if len(page) < PAGE_SIZE:
                break
            after = int(page[-1]["id"])
        self._read_channels.add(channel)

    def _last_read(self, channel: str) -> int:
        last = self.markers.last(channel)
        return self._default_start if last is None else last

    async def _page(self, channel: str, after: int) -> list[Raw]:
        where = path("channels", channel, "messages")
        query = f"after={after}&limit={PAGE_SIZE}"
        try:
            found = await self._api.call(
                "GET", where, name="read history", query=query, needs="Read Message History"
            )
        except UNREADABLE_ERRORS as error:
            log.info("discord.channel_backfill_skipped: %s", error)
            return []
        kept = [one for one in found if _is_message(one)] if isinstance(found, list) else []
        return sorted(kept, key=lambda one: int(one["id"]))


def _is_message(raw: object) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("id"), str) and raw["id"].isdecimal()


def _evict(known: OrderedDict[str, Any]) -> None:
    while len(known) > MAX_REMEMBERED:
        known.popitem(last=False)
