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


class Interruption(StrEnum):
    """How the last attempt of a turn was interrupted."""

    NONE = "none"
    LOST = "lost"
    """This process lost its lease or its database connection, and lives."""
    CRASH = "crash"
    """The process that ran it died, or another replica took the turn over."""


SHARED_POINTS = 1
"""What an interruption counts that says little about the turn: others ran too, or the process lives."""

ALONE_POINTS = 4
"""What a crash counts while the turn ran in quarantine, with no other suspect beside it."""

EXONERATION_POINTS = ALONE_POINTS - SHARED_POINTS
"""What is taken back when a process dies while the turn waits in quarantine: something else kills it.

It is less than a crash adds, so that each interruption counts at least one point and the total is bounded.
"""

QUARANTINE_POINTS = 2
"""Points from which a turn runs only while no other suspect runs."""

DEAD_POINTS = 14
"""Points at which a turn is dead-lettered: five crashes of which the last three are alone, and at most
fourteen interruptions of any cause."""

QUARANTINE_DELAYS = (2.0, 5.0)
"""Seconds that a turn waits after each crash alone. A poison turn's process lives during this time; if
something else kills the processes, it does so during the wait as well, and the turn is not at fault.
"""

DEAD_LETTER_PREFIX = "given up: "
"""Start of the stored error that marks a dead-lettered turn."""


RETRY_DELAYS = (2.0, 10.0, 30.0, 120.0, 300.0, 600.0, 900.0)
"""Seconds between attempts while the service of the model or the sandbox is unavailable."""

LONGEST_RETRY_DELAY = 1800.0
"""Seconds between all further attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPeriods:
    """For how many seconds a turn is retried: a person waits only for a message's answer."""

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
    """What happens to a turn after its interruptions: run it, run it alone later, or dead-letter it."""

    points: int
    alone: bool
    dead: bool
    wait: float


def decide_poison(points: int, interruption: Interruption, *, waited_through_crash: bool) -> PoisonDecision:
    """Decide about a turn that had `points` before its last interruption.

    `waited_through_crash`: since its last crash alone, a process died while the turn waited in quarantine.
    """
    was_alone = points >= QUARANTINE_POINTS
    crashed_alone = was_alone and interruption is Interruption.CRASH
    if crashed_alone:
        now = points + ALONE_POINTS
    elif interruption is not Interruption.NONE:
        now = points + SHARED_POINTS
    elif waited_through_crash:
        now = max(points - EXONERATION_POINTS, QUARANTINE_POINTS)
    else:
        now = points
    return PoisonDecision(
        points=now,
        alone=now >= QUARANTINE_POINTS,
        dead=now >= DEAD_POINTS,
        wait=_quarantine_delay(now) if crashed_alone else 0.0,
    )


def _quarantine_delay(points: int) -> float:
    crashes = (points - QUARANTINE_POINTS) // ALONE_POINTS
    return QUARANTINE_DELAYS[min(max(crashes, 1), len(QUARANTINE_DELAYS)) - 1]
