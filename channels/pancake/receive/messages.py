"""Read a page's new messages from Pancake, which keeps them: nothing is lost while the gateway is down."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.inbox.polling import PositionFeed
from channels.inbox.text import clean, identifier, iso_time
from channels.pancake.api import PancakeApi, customer_of
from channels.pancake.settings import PancakeSettings
from channels.port import ChannelState

START = "messages:start"
OVERLAP = timedelta(seconds=60)
"""A message may appear this much later than its time; what was seen before has the same key."""

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

    async def start(self) -> str:
        """Load the position; a new channel begins with what is written from now on."""
        stored = await super().start()
        first = await self._state.get(START)
        if first is None:
            await self._state.set({START: stored})
        self._position, self._start = iso_time(stored), iso_time(first or stored)
        return stored

    async def newest(self) -> str:
        """Return the present moment."""
        return datetime.now(UTC).isoformat()

    async def fetch(self) -> Sequence[Mapping[str, Any]]:
        """Ask for the conversations that changed since the position, and for their new messages."""
        await self.start()  # another replica may have moved the position
        found: list[Mapping[str, Any]] = []
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._api.list_conversations(after)
            changed = [one for one in page if iso_time(one.get("updated_at")) >= self._after]
            for conversation in changed:
                found += await self.fetch_one(conversation)
            if len(changed) < len(page) or not page:
                break
            after = identifier(page[-1].get("id"))
        return sorted(found, key=lambda one: clean(one["message"].get("inserted_at")))

    async def fetch_one(self, conversation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the messages of one conversation that were not confirmed, oldest first."""
        name, customer = identifier(conversation.get("id")), customer_of(conversation)
        rows: list[Mapping[str, Any]] = []
        for _ in range(MAX_PAGES):
            page = await self._api.list_messages(name, customer, before=len(rows))
            rows += page
            if not page or any(iso_time(row.get("inserted_at")) < self._after for row in page):
                break
        new = [row for row in rows if self._is_new(row)]
        found = [{"conversation": conversation, "message": row} for row in new]
        return sorted(found, key=lambda one: clean(one["message"].get("inserted_at")))

    async def confirm(self, raw: Mapping[str, Any]) -> None:
        """Move the position to a message that is stored."""
        moment = iso_time(raw["message"].get("inserted_at"))
        if moment > self._position:
            await self.move(moment.isoformat())
            self._position = moment
        self._seen.append(identifier(raw["message"].get("id")))

    @property
    def _after(self) -> datetime:
        return max(self._start, self._position - OVERLAP)

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        return iso_time(row.get("inserted_at")) >= self._after and identifier(row.get("id")) not in self._seen
