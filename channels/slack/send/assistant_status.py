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

STATUS_TEXT = "is at work…"
MAX_REMEMBERED = 1000

ThreadKey = tuple[str, str]


class AssistantStatus:
    """The statuses we set; it remembers where Slack shows none."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._refused: OrderedDict[ThreadKey, None] = OrderedDict()
        self._sending: Counter[ThreadKey] = Counter()
        self._setting: set[ThreadKey] = set()
        self._overtaken: set[ThreadKey] = set()

    async def show_working(self, address: Address) -> None:
        """Set a thread's status; where Slack has none, and while we speak there, nothing happens."""
        place = _thread_key(address)
        if not address.thread or place in self._refused or place in self._sending or place in self._setting:
            return
        self._setting.add(place)
        try:
            await self._set(place, STATUS_TEXT)
            if place in self._overtaken:
                await self._set(place, "")
        except (Rejected, NotPermitted, Undeliverable):
            self._remember_refusal(place)
        finally:
            self._setting.discard(place)
            self._overtaken.discard(place)

    @contextmanager
    def sending(self, address: Address) -> Iterator[None]:
        """Say that something is being said in a thread, which ends its status."""
        place = _thread_key(address)
        self._sending[place] += 1
        if place in self._setting:
            self._overtaken.add(place)
        try:
            yield
        finally:
            self._sending[place] -= 1
            if not self._sending[place]:
                del self._sending[place]

    async def _set(self, key: ThreadKey, status: str) -> None:
        room, thread = key
        given = {"channel_id": room, "thread_ts": thread, "status": status}
        await self._api.call("assistant.threads.setStatus", given)

    def _remember_refusal(self, key: ThreadKey) -> None:
        self._refused[key] = None
        if len(self._refused) > MAX_REMEMBERED:
            self._refused.popitem(last=False)


def _thread_key(address: Address) -> ThreadKey:
    return address.room, address.thread or ""
