"""Suspend idle sandboxes, delete expired ones, and remove orphans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import structlog

from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxBusy, SandboxError
from sandbox.lifecycle.reservations import (
    STUCK_SECONDS,
    Reservation,
    ReservationStatus,
    ReservationStore,
    now_utc,
)
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import SandboxSpec, is_external

log = structlog.get_logger(__name__)

UNRESERVED_IDLE_SECONDS = 60.0
"""Seconds that an unreserved sandbox is left to the turn that created it."""
MISSING_PROVIDER_SECONDS = 7 * 86400.0
"""Seconds since the last use after which a row is deleted if its provider is not open here."""
SNAPSHOT_RETENTION_SECONDS = 30 * 86400.0
"""Seconds that a snapshot without an instance is retained."""


class ReaperAction(StrEnum):
    """What to do with a reservation."""

    KEEP = "keep"
    SUSPEND = "idle"
    EXPIRE = "expired"
    ABANDON = "abandoned"
    FINISH = "done"
    DELETE = "forgotten"


def next_action(row: Reservation, now: datetime, *, running: int) -> ReaperAction:
    """Return what to do with a reservation in whose sandbox `jobs` jobs run; a pure function."""
    idle = (now - row.used_at).total_seconds()
    age = (now - row.made_at).total_seconds() if row.made_at else 0.0
    if row.status is ReservationStatus.CREATING:
        stuck = (now - row.changed_at).total_seconds() > STUCK_SECONDS
        return ReaperAction.ABANDON if stuck else ReaperAction.KEEP
    if row.is_stopped:
        return (
            ReaperAction.DELETE
            if row.snapshot is None or idle > SNAPSHOT_RETENTION_SECONDS
            else ReaperAction.KEEP
        )
    if age >= row.max_lifetime and not is_external(row.sandbox):
        return ReaperAction.EXPIRE
    if running:
        return ReaperAction.KEEP
    if not row.persistent:
        return ReaperAction.FINISH if idle > UNRESERVED_IDLE_SECONDS else ReaperAction.KEEP
    asleep = row.paused or row.active_since is None
    return ReaperAction.SUSPEND if idle >= row.idle_timeout and not asleep else ReaperAction.KEEP


class SandboxEnd(StrEnum):
    """Why the jobs of a sandbox end with it."""

    EXPIRED = "sandbox_expired"
    REMOVED = "sandbox_removed"
    PROVIDER_REMOVED = "sandbox_provider_removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperHooks:
    """Callbacks into the gateway.

    They return the spec of a row (None if its record is gone) and the running jobs of its sandbox, and end
    those jobs with a reason.
    """

    get_spec: Callable[[Reservation], Awaitable[SandboxSpec | None]]
    list_running_jobs: Callable[[Reservation], Awaitable[Sequence[str]]]
    end_jobs: Callable[[Reservation, SandboxEnd], Awaitable[None]]


class Reaper:
    """Visits reservations. Every action is fenced by the row's version and by the lock."""

    def __init__(
        self,
        reservations: ReservationStore,
        teardowns: Mapping[str, Teardown],
        hooks: ReaperHooks,
        *,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._reservations = reservations
        self._teardowns = teardowns
        self._hooks = hooks
        self._clock = clock

    @property
    def providers(self) -> Sequence[str]:
        """The names of the providers that are open here."""
        return tuple(self._teardowns)

    async def list_rows(self, ending: str | None = None) -> Sequence[Reservation]:
        """Return all reservations; with `ending` those without an instance only if their label ends so."""
        if ending is None:
            return await self._reservations.list_all()
        return await self._reservations.list_live(ending=ending)

    async def visit(self, row: Reservation) -> None:
        """Do what is due for a row; one that fails is visited again in the next pass."""
        try:
            if row.provider in self._teardowns:
                await self._reap(row)
            else:
                await self._delete_unreachable(row)
        except SandboxBusy:
            log.debug("reaper.skipped", label=row.label)
        except (SandboxError, OSError) as error:
            log.warning("reaper.postponed", label=row.label, error=str(error))

    async def _reap(self, row: Reservation) -> None:
        spec = await self._hooks.get_spec(row)
        if spec is None:
            await self.delete(row)
            return
        running = await self._hooks.list_running_jobs(row)
        action = next_action(row, self._clock(), running=len(running))
        if action is ReaperAction.KEEP:
            return
        endings, why = self._teardowns[row.provider], action.value
        if action is ReaperAction.SUSPEND:
            await _suspend(endings, row, spec, reason=why)
        elif action in (ReaperAction.EXPIRE, ReaperAction.ABANDON):
            await self._hooks.end_jobs(row, SandboxEnd.EXPIRED)
            if await endings.stop(row, spec, reason=why) and action is ReaperAction.ABANDON:
                await endings.sweep(row.label)  # what its creator may have made, under the same label
        elif action is ReaperAction.FINISH:
            await endings.stop(row, spec, reason=why)
        else:
            await endings.delete(row.label, reason=why)

    async def _delete_unreachable(self, row: Reservation) -> None:
        """Delete the row of a sandbox whose provider is not open here, after a grace period."""
        now = self._clock()
        if (now - max(row.used_at, row.changed_at)).total_seconds() < MISSING_PROVIDER_SECONDS:
            return
        log.warning(
            "reaper.provider_removed", label=row.label, provider=row.provider, sandbox=str(row.sandbox or "")
        )
        await self._hooks.end_jobs(row, SandboxEnd.PROVIDER_REMOVED)
        await self._reservations.delete(row, step="sandbox.delete", reason="provider_removed")

    async def delete(self, row: Reservation, *, patience: float = 0.0) -> None:
        """Delete a sandbox that nothing needs, and its jobs.

        Raises SandboxBusy if it stays in use for `patience` seconds.
        """
        await self._hooks.end_jobs(row, SandboxEnd.REMOVED)
        await self._teardowns[row.provider].delete(row.label, reason="removed", patience=patience)

    async def sweep(self, provider: str, prefix: str) -> int:
        """Delete the orphaned sandboxes and snapshots of a provider; return how many there were."""
        endings = self._teardowns[provider]
        try:
            return await endings.sweep(prefix) + await endings.sweep_snapshots(prefix)
        except (SandboxError, OSError) as error:
            log.warning("reaper.sweep_failed", provider=provider, error=str(error))
            return 0


async def _suspend(endings: Teardown, row: Reservation, spec: SandboxSpec, *, reason: str) -> None:
    """Suspend a sandbox, unless its provider refuses it because of what runs in the sandbox."""
    try:
        await endings.suspend(row, spec, reason=reason)
    except (ProviderRefused, FeatureUnsupported) as error:
        log.debug("reaper.refused", label=row.label, error=str(error))
