"""Messages that are refused because their conversation's queue is full: remembered, counted and reported.

The first one is reported at once, in reply to it. Further ones are counted in memory, without a query, and
reported together at most once a minute in each chat thread, with the first and the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from delivery.background import log_errors
from delivery.deliveries.transactions import Transactions
from gateway.conversations.notices import post_notice, quoted

log = structlog.get_logger(__name__)

FULL_SECONDS = 0.5
"""Seconds for which a queue that was full counts as full without a query."""

REPORT_INTERVAL = 60.0
"""Seconds between two reports to one chat thread."""

MAX_THREADS = 10_000
"""Chat threads that are remembered; the least recently seen are evicted."""

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedMessages:
    """Messages of one conversation that were refused and not reported yet; the ends are their texts."""

    conversation: str
    count: int
    first: str
    last: str

    def render(self) -> str:
        """Return the notice about them."""
        if self.count == 1:
            return f"One more message was not processed, because the queue was full: {quoted(self.first)}."
        return (
            f"{self.count} more messages were not processed, because the queue was full. "
            f"The first was {quoted(self.first)}, the last {quoted(self.last)}."
        )


@dataclass(slots=True)
class _FullQueue:
    full_at: float
    reported_at: float | None = None
    conversation: str = ""
    count: int = 0
    first: str = ""
    last: str = ""

    def add(self, text: str) -> None:
        self.first = self.first if self.count else text
        self.count, self.last = self.count + 1, text

    def take(self) -> RefusedMessages:
        taken = RefusedMessages(
            conversation=self.conversation, count=self.count, first=self.first, last=self.last
        )
        self.count = 0
        return taken


class FullQueues:
    """The chat threads whose queue was full a moment ago, and their refused messages."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: OrderedDict[str, _FullQueue] = OrderedDict()

    def record_full(self, thread: str, conversation: str, text: str) -> bool:
        """Record a message that a full queue refused; returns whether to report it there now."""
        now = self._clock()
        queue = self._queues.setdefault(thread, _FullQueue(full_at=now))
        self._queues.move_to_end(thread)
        while len(self._queues) > MAX_THREADS:
            self._queues.popitem(last=False)
        queue.full_at, queue.conversation = now, conversation
        if queue.reported_at is not None and now - queue.reported_at < REPORT_INTERVAL:
            queue.add(text)
            return False
        queue.reported_at = now
        return True

    def refuse_if_full(self, thread: str, text: str) -> bool:
        """Return whether a thread's queue was full a moment ago; the message is counted then."""
        queue = self._queues.get(thread)
        if queue is None or self._clock() - queue.full_at >= FULL_SECONDS:
            return False
        queue.add(text)
        return True

    def recheck(self, thread: str) -> None:
        """Check the queue again at the thread's next message, because it may have changed."""
        if thread in self._queues:
            self._queues[thread].full_at = float("-inf")

    def take_due(self, *, now: bool = False) -> list[RefusedMessages]:
        """Return the refused messages to report, a minute after the thread's last report or right `now`."""
        moment = self._clock()
        due = [
            queue
            for queue in self._queues.values()
            if queue.count and (now or moment - (queue.reported_at or 0.0) >= REPORT_INTERVAL)
        ]
        for queue in due:
            queue.reported_at = moment
        return [queue.take() for queue in due]


class RefusalReports:
    """Reports the refused messages of full queues, each thread at most once a minute."""

    def __init__(self, transactions: Transactions, full_queues: FullQueues) -> None:
        self._transactions = transactions
        self._full_queues = full_queues

    async def run(self, stop: asyncio.Event) -> None:
        """Report until stopped; then report what is left, because the counts are lost with the process."""
        while not stop.is_set():
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()
            except TimeoutError:
                await self.run_once()
        await self.run_once(now=True)

    async def run_once(self, *, now: bool = False) -> None:
        """Report the refused messages that are due, or with `now` all of them."""
        for refused in self._full_queues.take_due(now=now):
            with log_errors("refusals", conversation=refused.conversation):
                async with self._transactions.begin("reception") as tx:
                    await post_notice(tx, refused.conversation, refused.render(), urgent=True)


def render_refusal(text: str, why: str) -> str:
    """Return the notice about the first message that a full queue refuses."""
    return f"This message was not processed: {quoted(text)}. {why[:1].upper()}{why[1:]}."
