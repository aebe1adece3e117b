"""The status under a question: that we are at work. Slack takes it away when the answer is posted.

A status whose call is overtaken by the answer would stand for two minutes after it: it is taken away again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from channels.errors import NotPermitted, Rejected, Undeliverable
from channels.message import Address
from channels.slack.api import Api

STATUS = "is at work…"
REMEMBERED = 1000

Place = tuple[str, str]


class Status:
    """The statuses we set; it remembers where Slack shows none."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._refused: OrderedDict[Place, None] = OrderedDict()
        self._speaking: Counter[Place] = Counter()
        self._setting: set[Place] = set()
        self._overtaken: set[Place] = set()

    async def show(self, address: Address) -> None:
        """Set a thread's status; where Slack has none, and while we speak there, nothing happens."""
        place = _place(address)
        if not address.thread or place in self._refused or place in self._speaking or place in self._setting:
            return
        self._setting.add(place)
        try:
            await self._set(place, STATUS)
            if place in self._overtaken:
                await self._set(place, "")
        except (Rejected, NotPermitted, Undeliverable):
            self._refuse(place)
        finally:
            self._setting.discard(place)
            self._overtaken.discard(place)

    @contextmanager
    def speaking(self, address: Address) -> Iterator[None]:
        """Say that something is being said in a thread, which ends its status."""
        place = _place(address)
        self._speaking[place] += 1
        if place in self._setting:
            self._overtaken.add(place)
        try:
            yield
        finally:
            self._speaking[place] -= 1
            if not self._speaking[place]:
                del self._speaking[place]

    async def _set(self, place: Place, status: str) -> None:
        room, thread = place
        given = {"channel_id": room, "thread_ts": thread, "status": status}
        await self._api.call("assistant.threads.setStatus", given)

    def _refuse(self, place: Place) -> None:
        self._refused[place] = None
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)


def _place(address: Address) -> Place:
    return address.room, address.thread or ""
