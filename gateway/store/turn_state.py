"""The life of a turn (pure).

            a                b                c
   (new) ─────▶ queued ─────▶ running ─────▶ completed
                 ▲  │ e         │ │ │  d
                 │  ▼           │ │ └──────▶ failed
                 │ cancelled ◀──┘ │ f
                 │   ▲ i          │ g
                 │   │            ▼
                 └── waiting ◀────┘
                  h

    a  accepted: the row is committed with the message or the job's result
    b  claimed by the holder of the conversation's lease (attempt + 1)
    c  the agent finished
    d  the agent failed, a limit was reached, or the turn crashed the gateway too often
    e  cancelled before it began
    f  cancelled while running
    g  tool calls wait for people
    h  every one of them is decided
    i  cancelled while waiting

After a crash a running turn is claimed again (b) by whoever holds the lease next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TurnState(StrEnum):
    """Where a turn stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({TurnState.COMPLETED, TurnState.FAILED, TurnState.CANCELLED})
OPEN = tuple(str(state) for state in TurnState if state not in FINAL)


class QueueMode(StrEnum):
    """What happens to a message that arrives while a turn of its conversation runs."""

    FOLLOWUP = "followup"
    """It waits for a turn of its own."""
    COLLECT = "collect"
    """It becomes part of the one next turn of who said it."""
    STEER = "steer"
    """The running turn hears it at its next step; one that ends before becomes a turn of its own."""
    INTERRUPT = "interrupt"
    """The running turn ends, and it is next."""


QUEUE_LIMIT = 50
"""Turns that may wait in one conversation; one more is refused politely."""

QUARANTINE_AFTER_CRASHES = 2
"""Crashes a turn may share with others in flight before it is run again alone in its process."""

CRASH_LIMIT = 5
"""Crashes of its process after which a turn is given up."""

DEAD_LETTER_PREFIX = "given up: "
"""How the error of such a turn begins: it is a dead letter until somebody asks for it again."""


RETRY_DELAYS = (2.0, 10.0, 30.0, 120.0)
"""Seconds before a turn is tried again whose model's service was down; after the last it fails."""


def retry_after(attempt: int) -> float | None:
    """Return how long a turn waits after failed attempt number `attempt` (from 1); None: no more."""
    return RETRY_DELAYS[attempt - 1] if attempt <= len(RETRY_DELAYS) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonDecision:
    """What a turn's crashes call for: to be tried (alone?), or given up."""

    crashes: int
    alone: bool
    dead: bool


def decide_poison(crashes: int, *, crashed_again: bool) -> PoisonDecision:
    """Judge a turn during which the process died `crashes` times before, and now `again` or not.

    The first crash may be anybody's fault, so everything in flight runs again at once. From the second
    on a turn runs again with no other suspect beside it, and those that wait for that count no crash.
    """
    now = crashes + crashed_again
    return PoisonDecision(crashes=now, alone=now >= QUARANTINE_AFTER_CRASHES, dead=now >= CRASH_LIMIT)
