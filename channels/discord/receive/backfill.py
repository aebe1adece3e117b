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
from channels.discord.errors import NotThere
from channels.discord.receive import codec
from channels.discord.receive.read_markers import Mark, Seen
from channels.errors import NotPermitted, Rejected, Undeliverable

Raw = Mapping[str, Any]

READABLE = frozenset({0, 2, 5, 13, *codec.THREADS})
"""Kinds of channel that hold messages (a forum holds threads)."""

PAGE = 100
MOST_PAGES = 10
MOST = 10_000
OVERLAP, LONGEST = timedelta(minutes=5), timedelta(days=7)
"""How far before the last message heard anywhere rooms are read that are new, and how far back at most."""

CLOSED = (Undeliverable, Rejected, NotThere, NotPermitted)
"""What reading a room may meet that says nothing about the others."""

log = logging.getLogger(__name__)


class Places:
    """What kind of place each channel is; asked for once where no event told it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: OrderedDict[str, Raw] = OrderedDict()

    def learn(self, channel: object) -> None:
        """Remember a channel from an event."""
        if isinstance(channel, dict) and isinstance(channel.get("id"), str):
            kept = {name: channel.get(name) for name in ("id", "type", "parent_id")}
            self._known[channel["id"]] = kept
            _bound(self._known)

    def is_thread(self, channel: str) -> bool:
        """Whether a channel is known as a thread."""
        return self._known.get(channel, {}).get("type") in codec.THREADS

    async def find(self, channel: str) -> Raw | None:
        """Return what a channel is, None when Discord does not tell."""
        if channel not in self._known:
            try:
                self.learn(await self._api.call("GET", path("channels", channel), name="which channel"))
            except CLOSED:
                self.learn({"id": channel})
        found = self._known.get(channel)
        return found if found and isinstance(found.get("type"), int) else None


class History:
    """How far each room is known, and what has to be read."""

    def __init__(self, api: Api, minutes: int, seen: Seen) -> None:
        self._api = api
        self._minutes = minutes
        self._session = ""
        self._floor = 0
        self._told: OrderedDict[str, None] = OrderedDict()
        self._read: set[str] = set()
        self.seen = seen

    def begin(self, session: str) -> None:
        """A new session: what was said before it has to be read. The same one again changes nothing."""
        if session and session == self._session:
            return
        self._session = session
        self._floor = self._missed_since(datetime.now(UTC))
        self._read.clear()

    def _missed_since(self, now: datetime) -> int:
        """Return from where rooms are read that were never heard of: from what was heard last anywhere."""
        newest = self.seen.newest()
        if newest is None:
            return payloads.snowflake(now - timedelta(minutes=self._minutes))
        return payloads.snowflake(max(payloads.moment(str(newest)) - OVERLAP, now - LONGEST))

    def saw(self, room: str, message: str, mark: Mark, *, read: bool = False) -> bool:
        """Remember a message that was accepted, and one that may come by the gateway too."""
        if read:
            self._told[message] = None
            _bound(self._told)
        return self.seen.put(room, mark)

    def was_told(self, message: str) -> bool:
        """Whether a message was read already."""
        return message in self._told

    def wants(self, channel: Raw, joined: int = 0) -> bool:
        """Whether a channel holds something that is not known."""
        last = str(channel.get("last_message_id") or "")
        readable = channel.get("type") in READABLE and last.isdecimal()
        place = str(channel.get("id"))
        return readable and self.is_unread(place) and int(last) > max(self._since(place), joined)

    def is_unread(self, channel: str) -> bool:
        """Whether a room was not looked at since the session began."""
        return self._minutes > 0 and channel not in self._read

    async def messages(self, channel: str, joined: int = 0) -> AsyncIterator[Raw]:
        """Yield what was said since, in order; afterwards the room counts as read."""
        after = max(self._since(channel), joined)
        for _ in range(MOST_PAGES if self._minutes else 0):
            page = await self._page(channel, after)
            for message in page:
                yield message
            if len(page) < PAGE:
                break
            after = int(page[-1]["id"])
        self._read.add(channel)

    def _since(self, channel: str) -> int:
        last = self.seen.last(channel)
        return self._floor if last is None else last

    async def _page(self, channel: str, after: int) -> list[Raw]:
        where = path("channels", channel, "messages")
        query = f"after={after}&limit={PAGE}"
        try:
            found = await self._api.call(
                "GET", where, name="read history", query=query, needs="Read Message History"
            )
        except CLOSED as error:
            log.info("discord: a channel cannot be read: %s", error)
            return []
        kept = [one for one in found if _is_message(one)] if isinstance(found, list) else []
        return sorted(kept, key=lambda one: int(one["id"]))


def _is_message(raw: object) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("id"), str) and raw["id"].isdecimal()


def _bound(known: OrderedDict[str, Any]) -> None:
    while len(known) > MOST:
        known.popitem(last=False)
