"""What a storm runs, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.storm.requests import OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """What to run: so many clients for so many seconds, people in chats, and so many outages."""

    seconds: float = 60.0
    clients: int = 16
    chats: int = 4
    readers: int = 6
    visitors: int = 2
    kills: int = 0
    restarts: int = 0
    nats_kills: int = 0
    database_restarts: int = 0
    replicas: int = 2
    seed: int = 1
    kinds: Sequence[str] = tuple(OPERATIONS)


@dataclass(slots=True, kw_only=True)
class StormReport:
    """What was counted. `cut` are requests whose replica or database went away; every list is of faults."""

    plan: StormPlan
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    cut: int = 0
    frames: int = 0
    errors: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    deadlocks: int = 0
    waiting: dict[str, float] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return sum(self.statuses.values())

    @property
    def faults(self) -> list[str]:
        """Every fault that has a text: those that name a lost or foreign thing first."""
        of_data = [*self.unanswered, *self.missed, *self.foreign]
        return [*of_data, *self.logged, *self.late, *self.errors]

    @property
    def is_kept(self) -> bool:
        """Whether nothing failed, and everything was at rest afterwards."""
        return not (self.faults or self.waiting or self.deadlocks) and set(self.exit_codes) <= {0}
