"""The doors of delivery: the durable stream, leases, wake-ups, and the sinks results go to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class OutcomeKind(StrEnum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    RETRY = "retry"
    AMBIGUOUS = "ambiguous"
    """It may have arrived; the sink says so when trying again could say it twice."""
    GIVE_UP = "give_up"
    OPERATOR = "operator"
    """Only an operator can help: tried again rarely, and told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one attempt; `status` and `excerpt` (≤ 1 KiB) are for the attempt log."""

    kind: OutcomeKind
    detail: str = ""
    platform_id: str | None = None
    retry_after: float | None = None
    pause_destination: bool = False
    """The whole destination, not this delivery alone, waits out `retry_after`."""
    pause_bot: bool = False
    """And not this destination alone: everything the same bot says."""
    uncertain: bool = False
    """It may have arrived, by this attempt or an earlier one, and the sink finds out before it repeats it."""
    address_dead: bool = False
    disable_endpoint: bool = False
    status: int | None = None
    excerpt: str = ""


def _always_held() -> None:
    """Nothing speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The obligation to bring one part of one event to one route.

    `body` is what the sink was given at planning time (a chat part's text and buttons, or the event for a
    webhook). `platform_id` is set when an earlier attempt (or a draft) already shows there. `uncertain`: an
    earlier attempt may have arrived; `tried_at` is then when the first one began. `check` raises LeaseLost
    once another may be looking after it: a sink that has waited asks right before it speaks. What it enters
    in `held` it has until the outcome is recorded.
    """

    id: str
    account: str
    event_id: str
    event_type: str
    event_time: datetime
    conversation: str | None
    kind: str
    target: str
    part: int
    body: bytes
    attempt: int
    platform_id: str | None = None
    uncertain: bool = False
    turn: str | None = None
    first_attempt_at: datetime | None = None
    ensure_held: Callable[[], None] = field(default=_always_held, repr=False, compare=False)
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack, repr=False, compare=False)


class Sink(Protocol):
    """Delivers to one kind of route. Makes one attempt, judges it, and never retries by itself."""

    @abstractmethod
    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once within 30 s (a file: two minutes); never raises but on cancellation (or what
        `delivery.check` raises).

        The same `delivery.id` and event id accompany every attempt.
        """
