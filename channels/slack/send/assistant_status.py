"""Set the assistant's status in a thread; Slack removes it when the answer is posted.

If the answer is posted while the status is being set, the status would stay for two minutes: it is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from channels.errors import NotPermitted, Rejected, Undeliverable
from channels.message import Address
from channels.receiving.expiring_set import ExpiringSet
from channels.slack.api import Api

STATUS_TEXT = "is working…"
MAX_REMEMBERED = 1000

ThreadKey = tuple[str, str]


class AssistantStatus:
    """Sets statuses and remembers the threads that refuse them, for some seconds."""

    def __init__(self, api: Api, *, refused_seconds: float = 600.0) -> None:
        self._api = api
        self._refused = ExpiringSet[ThreadKey](MAX_REMEMBERED, seconds=refused_seconds)
        self._sending: Counter[ThreadKey] = Counter()
        self._setting: set[ThreadKey] = set()
        self._overtaken: set[ThreadKey] = set()

    async def show_working(self, address: Address) -> None:
        """Set a thread's status, unless Slack refused it lately or a message is being sent."""
        key = _thread_key(address)
        if not address.thread or key in self._refused or key in self._sending or key in self._setting:
            return
        self._setting.add(key)
        try:
            await self._set(key, STATUS_TEXT)
            if key in self._overtaken:
                await self._set(key, "")
        except (Rejected, NotPermitted, Undeliverable):
            self._refused.add(key)
        finally:
            self._setting.discard(key)
            self._overtaken.discard(key)

    @contextmanager
    def sending(self, address: Address) -> Iterator[None]:
        """Mark that a message is being sent in a thread, which ends its status."""
        key = _thread_key(address)
        self._sending[key] += 1
        if key in self._setting:
            self._overtaken.add(key)
        try:
            yield
        finally:
            self._sending[key] -= 1
            if not self._sending[key]:
                del self._sending[key]

    async def _set(self, key: ThreadKey, status: str) -> None:
        room, thread = key
        parameters = {"channel_id": room, "thread_ts": thread, "status": status}
        await self._api.call("assistant.threads.setStatus", parameters)


def _thread_key(address: Address) -> ThreadKey:
    return address.room, address.thread or ""
