"""The port of sinks: a delivery, one attempt to deliver it, and the outcome of the attempt."""

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
    """It may have arrived, and another attempt could send it twice."""
    GIVE_UP = "give_up"
    OPERATOR = "operator"
    """Only an operator can solve the problem: retried rarely, and logged as an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one attempt; `status` and `excerpt` (≤ 1 KiB) are for the attempt log."""

    kind: OutcomeKind
    detail: str = ""
    platform_id: str | None = None
    retry_after: float | None = None
    pause_destination: bool = False
    """The whole destination, not only this delivery, waits `retry_after` seconds."""
    pause_bot: bool = False
    """All destinations of the same bot wait too."""
    uncertain: bool = False
    """This attempt or an earlier one may have arrived; the sink checks before it sends again."""
    unreached: bool = False
    """The receiver was not reached, which says little about this delivery."""
    content_refused: bool = False
    """The platform refuses what was to be sent, not the address."""
    unauthorized: bool = False
    """The receiver refuses the credentials of the sender."""
    address_dead: bool = False
    thread_dead: bool = False
    """The thread accepts nothing any more, and nothing was sent there; its room may."""
    disable_endpoint: bool = False
    status: int | None = None
    excerpt: str = ""


def _always_held() -> None:
    """Accept every call, for deliveries without a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One part of one event, to be delivered to one target.

    `body` was written when the delivery was created: a chat part's text and buttons, or the event for a
    webhook. `platform_id` is set when an earlier attempt or a draft is already visible. `uncertain`: an
    earlier attempt may have arrived; `first_attempt_at` is then the start of the first attempt.
    `ensure_held` raises LeaseLost once another worker may have the delivery; a sink that has waited calls it
    right before it sends. Contexts that a sink enters in `exit_stack` last until the outcome is recorded.
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
    """Delivers to one kind of route: makes one attempt, classifies its outcome, and never retries."""

    @abstractmethod
    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once, within 30 s (a file: two minutes), and return the outcome.

        Raises only CancelledError and the errors of `delivery.ensure_held`. Every attempt has the same
        `delivery.id` and event id.
        """
