"""Faults that are set on purpose, and the simulated Telegram's rate limits."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal

from channels.telegram.simulator.failure import ApiFailure, ConnectionCut, too_many_requests

Action = Literal["fail", "cut_before", "cut_after", "hang", "dawdle", "answer_late"]


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` matching calls; None matches everything."""

    action: Action
    times: int
    method: str | None = None
    chat: int | None = None
    failure: ApiFailure | None = None
    seconds: float = 0.0
    thread: int | None = None

    def matches(self, method: str, chat: int | None, thread: int | None) -> bool:
        """Return whether the fault applies to this call."""
        wanted = self.method is None or self.method.lower() == method
        return self.times > 0 and wanted and self.chat in (None, chat) and self.thread in (None, thread)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRates:
    """The messages a bot may send; 0 means no limit."""

    room_per_second: int = 0
    group_per_minute: int = 0
    overall_per_second: int = 0


TELEGRAM_RATES = MessageRates(room_per_second=1, group_per_minute=20, overall_per_second=30)
"""The rates that Telegram documents."""


class Faults:
    """The faults that are set, consumed one by one."""

    def __init__(self) -> None:
        self._set: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Add a fault."""
        self._set.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        self._set.clear()

    def consume(self, method: str, chat: int | None, thread: int | None = None) -> Fault | None:
        """Return the fault of this call and count it."""
        for fault in self._set:
            if fault.matches(method, chat, thread):
                fault.times -= 1
                return fault
        return None

    async def apply_before(self, method: str, chat: int | None, thread: int | None = None) -> Fault | None:
        """Apply a fault before the call, and return it, to be applied after the call too."""
        fault = self.consume(method, chat, thread)
        if fault is None:
            return None
        if fault.action in {"fail", "dawdle"}:
            await asyncio.sleep(fault.seconds)
        if fault.action == "fail" and fault.failure:
            raise fault.failure
        if fault.action == "cut_before":
            raise ConnectionCut
        if fault.action == "hang":
            await asyncio.Event().wait()
        return fault

    @staticmethod
    async def apply_after(fault: Fault | None) -> None:
        """Apply a fault after the call has been carried out."""
        if fault is not None and fault.action == "cut_after":
            raise ConnectionCut
        if fault is not None and fault.action == "answer_late":
            await asyncio.sleep(fault.seconds)


class RateLimits:
    """Counts a bot's messages and refuses those above the rates."""

    def __init__(self, rates: MessageRates) -> None:
        self.rates = rates
        self.refused = 0
        self._sent: defaultdict[str, deque[float]] = defaultdict(deque)

    def count(self, chat: int) -> None:
        """Count one message; raises a 429 ApiFailure with the seconds to wait."""
        now = asyncio.get_running_loop().time()
        wait = max(self._wait(key, limit, span, now) for key, limit, span in self._windows(chat))
        if wait > 0:
            self.refused += 1
            raise too_many_requests(math.ceil(wait))
        for key, _, _ in self._windows(chat):
            self._sent[key].append(now)

    def _windows(self, chat: int) -> list[tuple[str, int, float]]:
        group = self.rates.group_per_minute if chat < 0 else 0
        return [
            (f"second {chat}", self.rates.room_per_second, 1.0),
            (f"minute {chat}", group, 60.0),
            ("overall", self.rates.overall_per_second, 1.0),
        ]

    def _wait(self, key: str, limit: int, span: float, now: float) -> float:
        sent = self._sent[key]
        while sent and sent[0] <= now - span:
            sent.popleft()
        return sent[0] + span - now if limit and len(sent) >= limit else 0.0
