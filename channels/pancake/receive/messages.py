"""Read a page's new messages from Pancake, which keeps them: nothing is lost while the gateway is down."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.errors import ChannelError
from channels.inbox.polling import PositionFeed, log
from channels.inbox.text import clean, identifier, iso_time
from channels.pancake.api import PancakeApi, customer_of
from channels.pancake.settings import PancakeSettings
from channels.port import ChannelState
from channels.receiving.attempts import concerns_one_room
from channels.receiving.bounded_dict import BoundedDict
from channels.receiving.unread_rooms import UnreadRooms

START = "messages:start"
LATENESS = timedelta(hours=1)
"""A message may appear this much later than its time; what was seen before has the same key."""

OVERLAP, SEARCH_SECONDS = timedelta(minutes=1), 60.0
"""Between two searches for late messages, only conversations that changed so shortly before are listed."""

MAX_READ = 10_000
"""Conversations of which the row is remembered, so that one without a change is not read again."""

MAX_PAGES = 20
MAX_SEEN = 5000


class PageMessages(PositionFeed):
    """The messages after the stored position, oldest first, each as {conversation, message}."""

    position_name = "messages:position"

    def __init__(self, api: PancakeApi, settings: PancakeSettings, state: ChannelState) -> None:
        super().__init__(state, settings.pause_seconds)
        self._api = api
        self._start = self._position = datetime.now(UTC)
        self._seen: deque[str] = deque(maxlen=MAX_SEEN)
        self._unread = UnreadRooms(state)
        self._read_rows = BoundedDict[str, Mapping[str, Any]](MAX_READ)
        self._searched_at = -SEARCH_SECONDS

    async def start(self) -> str:
        """Load the position; a new channel begins with what is written from now on."""
        stored = await super().start()
        await self._unread.load()
        first = await self._state.get(START)
        if first is None:
            await self._state.set({START: stored})
        self._position, self._start = iso_time(stored), iso_time(first or stored)
        return stored

    async def newest(self) -> str:
        """Return the present moment."""
        return datetime.now(UTC).isoformat()

    async def fetch(self) -> Sequence[Mapping[str, Any]]:
        """Ask for the conversations that changed since the position, and for their new messages.

        A conversation that cannot be read is noted, and read with the next fetch: it holds up no other.
        """
        await self.start()  # another replica may have moved the position
        found: list[Mapping[str, Any]] = []
        for name in self._unread.rooms:
            found += await self._read_noted(name)
        began, after = time.monotonic(), ""
        is_search = began - self._searched_at >= SEARCH_SECONDS
        since = self._since(LATENESS if is_search else OVERLAP)
        for _ in range(MAX_PAGES):
            page = await self._api.list_conversations(after)
            changed = [one for one in page if iso_time(one.get("updated_at")) >= since]
            for conversation in changed:
                found += await self._read(conversation)
            if len(changed) < len(page) or not page:
                break
            after = identifier(page[-1].get("id"))
        self._searched_at = began if is_search else self._searched_at
        return sorted(found, key=lambda one: clean(one["message"].get("inserted_at")))

    async def _read(self, conversation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the new messages of a conversation, none of one that is noted or has to be.

        One whose row is as it was when nothing was new has nothing new.
        """
        name = identifier(conversation.get("id"))
        if name in self._unread or self._read_rows.get(name) == conversation:
            return []
        try:
            found = await self.fetch_one(conversation)
        except ChannelError as error:
            if not concerns_one_room(error):
                raise
            log.warning("channel.room_not_read", room=name, error=str(error))
            await self._unread.add(name, _note(conversation, after=self._since(LATENESS)))
            return []
        if not found:
            self._read_rows[name] = conversation
        return found

    async def _read_noted(self, name: str) -> list[Mapping[str, Any]]:
        """Return what a noted conversation has since then; forget it once all of that is stored."""
        note = json.loads(self._unread.note(name))
        try:
            found = await self.fetch_one(note["conversation"], since=iso_time(note["after"]))
        except ChannelError as error:
            if error.remedy != "give_up" and not concerns_one_room(error):
                raise
            log.warning("channel.room_not_read", room=name, error=str(error))
            if error.remedy != "give_up":
                return []
            found = []
        if not found:
            await self._unread.remove(name)
        return found

    async def fetch_one(
        self, conversation: Mapping[str, Any], *, since: datetime | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the messages of one conversation that were not confirmed, oldest first."""
        after = since or self._since(LATENESS)
        name, customer = identifier(conversation.get("id")), customer_of(conversation)
        rows: list[Mapping[str, Any]] = []
        for _ in range(MAX_PAGES):
            page = await self._api.list_messages(name, customer, before=len(rows))
            rows += page
            if not page or any(iso_time(row.get("inserted_at")) < after for row in page):
                break
        new = [row for row in rows if self._is_new(row, after)]
        found = [{"conversation": conversation, "message": row} for row in new]
        return sorted(found, key=lambda one: clean(one["message"].get("inserted_at")))

    async def confirm(self, raw: Mapping[str, Any]) -> None:
        """Move the position to a message that is stored; a time in the future would hide later messages."""
        moment = min(iso_time(raw["message"].get("inserted_at")), datetime.now(UTC))
        if moment > self._position:
            await self.move(moment.isoformat())
            self._position = moment
        self._seen.append(identifier(raw["message"].get("id")))

    def _since(self, lateness: timedelta) -> datetime:
        return max(self._start, self._position - lateness)

    def _is_new(self, row: Mapping[str, Any], after: datetime) -> bool:
        return iso_time(row.get("inserted_at")) >= after and identifier(row.get("id")) not in self._seen


def _note(conversation: Mapping[str, Any], *, after: datetime) -> str:
    """Return what reading and decoding need of a conversation, with the time from which it is read."""
    needed = {name: conversation[name] for name in ("id", "type", "post_id") if name in conversation}
    needed["customer_id"] = customer_of(conversation)
    return json.dumps({"conversation": needed, "after": after.isoformat()})
