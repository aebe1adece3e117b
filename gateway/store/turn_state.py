"""The states of a turn and the decisions about interrupted ones (pure).

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
    d  the agent failed, a limit was reached, or the turn was interrupted too often
    e  cancelled before it was claimed
    f  cancelled while running
    g  tool calls wait for approvals
    h  all approvals are decided
    i  cancelled while waiting

A turn that is found running was interrupted: its process died or lost the lease. The next lease holder
claims it again (b).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TurnState(StrEnum):
    """The states of a turn."""

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
    """It becomes a turn of its own."""
    COLLECT = "collect"
    """It is added to the next turn of the same person."""
    STEER = "steer"
    """The running turn receives it at its next step; if it ends before, the message becomes a turn."""
    INTERRUPT = "interrupt"
    """The running turn is cancelled and the message becomes the next turn."""


QUEUE_LIMIT = 50
"""Open turns per conversation; further messages are refused."""

QUARANTINE_AFTER_CRASHES = 2
"""Interruptions after which a turn runs only while no other such turn runs in its process."""

CRASH_LIMIT = 5
"""Interruptions of any cause (crash, lost lease, lost database) after which a turn is dead-lettered."""

DEAD_LETTER_PREFIX = "given up: "
"""Start of the stored error that marks a dead-lettered turn."""


RETRY_DELAYS = (2.0, 10.0, 30.0, 120.0, 300.0, 600.0, 900.0)
"""Seconds between attempts while the service of the model or the sandbox is unavailable."""

LONGEST_RETRY_DELAY = 1800.0
"""Seconds between all further attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPeriods:
    """For how many seconds a turn is retried: a person waits for a message's answer, nobody for a job's."""

    message: float = 1200.0
    job: float = 28_800.0

    def for_trigger(self, trigger: str) -> float:
        """Return the period of a turn with this trigger."""
        return self.job if trigger == "job" else self.message


def retry_after(retries: int, *, period: float) -> float | None:
    """Return the seconds to wait before one more retry after `retries` of them; None: the turn fails.

    All delays together are at most `period` seconds.
    """
    delays = [
        RETRY_DELAYS[number] if number < len(RETRY_DELAYS) else LONGEST_RETRY_DELAY
        for number in range(retries + 1)
    ]
    return delays[-1] if sum(delays) <= period else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonDecision:
    """What happens to a turn after its interruptions: run it, run it alone, or dead-letter it."""

    crashes: int
    alone: bool
    dead: bool


def decide_poison(crashes: int, *, interrupted_again: bool) -> PoisonDecision:
    """Decide about a turn that was interrupted `crashes` times before, and now once more or not.

    After the first interruption all turns in flight run again at once. From the second on a turn runs
    with no other suspect beside it; suspects that wait for this count no interruption.
    """
    now = crashes + interrupted_again
    return PoisonDecision(crashes=now, alone=now >= QUARANTINE_AFTER_CRASHES, dead=now >= CRASH_LIMIT)
