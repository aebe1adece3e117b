"""The reaper: puts idle sandboxes to sleep, ends those whose time is over, and sweeps up what nobody owns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import structlog

from sandbox.errors import Busy, Refused, SandboxError, Unsupported
from sandbox.lifecycle.reservations import STUCK, Register, Reservation, Status, now_utc
from sandbox.lifecycle.teardown import Endings
from sandbox.model import Spec

log = structlog.get_logger(__name__)

PASSING = 60.0
"""Seconds a sandbox that is not reserved is left to the turn that made it."""
ABSENT = 7 * 86400.0
"""Seconds since its last use for which a row is kept whose provider is not open here any more."""
FORGOTTEN = 30 * 86400.0
"""Seconds a snapshot without a machine is kept."""


class Verdict(StrEnum):
    """What is to be done about a row."""

    KEEP = "keep"
    SUSPEND = "idle"
    EXPIRE = "expired"
    ABANDON = "abandoned"
    FINISH = "done"
    FORGET = "forgotten"


def judge(row: Reservation, now: datetime, *, running: int) -> Verdict:
    """Say what is to be done about a row in whose sandbox so many jobs run (pure)."""
    idle = (now - row.used_at).total_seconds()
    age = (now - row.made_at).total_seconds() if row.made_at else 0.0
    if row.status is Status.CREATING:
        stuck = (now - row.changed_at).total_seconds() > STUCK
        return Verdict.ABANDON if stuck else Verdict.KEEP
    if row.is_cold:
        return Verdict.FORGET if row.snapshot is None or idle > FORGOTTEN else Verdict.KEEP
    if age >= row.max_lifetime:
        return Verdict.EXPIRE
    if running:
        return Verdict.KEEP
    if not row.persistent:
        return Verdict.FINISH if idle > PASSING else Verdict.KEEP
    asleep = row.paused or row.active_since is None
    return Verdict.SUSPEND if idle >= row.idle_timeout and not asleep else Verdict.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the reaper asks of those above: the spec of a row (None: what it was made for is gone), the jobs
    that run in its sandbox, and to end them, telling why."""

    spec_of: Callable[[Reservation], Awaitable[Spec | None]]
    jobs_in: Callable[[Reservation], Awaitable[Sequence[str]]]
    end_jobs: Callable[[Reservation, str], Awaitable[None]]


class Reaper:
    """Goes through all rows. Whatever it does is fenced by the row's version and by the guard."""

    def __init__(
        self,
        register: Register,
        endings: Mapping[str, Endings],
        around: Surroundings,
        *,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._register = register
        self._endings = endings
        self._around = around
        self._clock = clock

    async def round(self) -> None:
        """Look at every row once; one that cannot be dealt with now is looked at in the next round."""
        for row in await self._register.every():
            try:
                if row.provider in self._endings:
                    await self._look(row)
                else:
                    await self._miss(row)
            except Busy:
                log.debug("reaper.in_use", label=row.label)
            except (Refused, Unsupported) as error:
                log.debug("reaper.refused", label=row.label, error=str(error))
            except (SandboxError, OSError) as error:
                log.warning("reaper.waits", label=row.label, error=str(error))

    async def _look(self, row: Reservation) -> None:
        spec = await self._around.spec_of(row)
        if spec is None:
            await self.remove(row, "removed")
            return
        running = await self._around.jobs_in(row)
        verdict = judge(row, self._clock(), running=len(running))
        if verdict is Verdict.KEEP:
            return
        endings, why = self._endings[row.provider], verdict.value
        if verdict is Verdict.SUSPEND:
            await endings.suspend(row, spec, why=why)
        elif verdict in (Verdict.EXPIRE, Verdict.ABANDON):
            await self._around.end_jobs(row, "sandbox_expired")
            await endings.end(row, spec, why=why)
        elif verdict is Verdict.FINISH:
            await endings.end(row, spec, why=why)
        else:
            await endings.delete(row.label, why=why)

    async def _miss(self, row: Reservation) -> None:
        """Give up, after a while, a sandbox whose provider is not open here: nobody can ask it."""
        now = self._clock()
        if (now - max(row.used_at, row.changed_at)).total_seconds() < ABSENT:
            return
        log.warning(
            "reaper.provider_removed", label=row.label, provider=row.provider, sandbox=str(row.sandbox or "")
        )
        await self._around.end_jobs(row, "sandbox_provider_removed")
        await self._register.drop(row, step="sandbox.delete", why="provider_removed")

    async def remove(self, row: Reservation, why: str) -> None:
        """Delete a sandbox now, with the jobs that run in it; raises Busy when somebody uses it."""
        await self._around.end_jobs(row, f"sandbox_{why}")
        await self._endings[row.provider].delete(row.label, why=why)

    async def sweep(self, prefix: str) -> int:
        """Remove what no row knows of, at every provider; returns how much that was."""
        found = 0
        for provider, endings in self._endings.items():
            try:
                found += await endings.sweep(prefix) + await endings.sweep_snapshots(prefix)
            except (SandboxError, OSError) as error:
                log.warning("reaper.sweep_failed", provider=provider, error=str(error))
        return found
