"""Connect to the instance of a reservation, and replace one that is outdated only when nothing runs in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from sandbox.errors import SandboxError, SandboxOutdated
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.reservations import Reservation, SandboxRequest
from sandbox.lifecycle.snapshot_saver import save_snapshot
from sandbox.model import SandboxId
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedSandbox:
    """A connected instance; an outdated one has the settings that it was made with."""

    sandbox: Sandbox
    is_outdated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedSandbox:
    """An instance that may be replaced: nothing runs in it, and what it holds is saved. `row` is its row."""

    row: Reservation


class Connector:
    """Connects to the instances of one provider, and counts the calls of this process that use each.

    The lock of a sandbox admits one process at a time, so nobody else uses it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._users: Counter[str] = Counter()

    @contextmanager
    def using(self, label: str) -> Iterator[None]:
        """Count a call that uses the sandbox of a label."""
        self._users[label] += 1
        try:
            yield
        finally:
            self._users[label] -= 1
            if not self._users[label]:
                del self._users[label]

    async def connect(
        self, row: Reservation, sandbox_id: SandboxId, request: SandboxRequest
    ) -> ConnectedSandbox | OutdatedSandbox:
        """Return the instance of a row, or that it may be replaced now; raises SandboxGone.

        An outdated one stays in use, as it was made, while a job or another call runs in it.
        """
        try:
            found = await self._backend.provider.connect(sandbox_id, request.spec)
        except SandboxOutdated as error:
            jobs = await self._backend.count_jobs(row)
            is_used = bool(jobs) or self._users[row.label] > 1
            saved = None if is_used else await self._save(row, sandbox_id, request)
            if saved is not None:
                return OutdatedSandbox(row=saved)
            log.info("sandbox.change_waits", label=row.label, jobs=jobs, reason=str(error))
        else:
            return ConnectedSandbox(sandbox=found, is_outdated=False)
        as_created = await self._backend.connect(sandbox_id, request.spec)
        return ConnectedSandbox(sandbox=as_created, is_outdated=True)

    async def _save(
        self, row: Reservation, sandbox_id: SandboxId, request: SandboxRequest
    ) -> Reservation | None:
        """Take the last snapshot of an instance, if it has any, and return its row; None if that failed.

        The next instance begins from the snapshot, so an older one would undo what this one wrote.
        """
        if not (request.snapshots and row.persistent):
            return row
        try:
            sandbox = await self._backend.connect(sandbox_id, request.spec)
            return await save_snapshot(self._backend, row, sandbox)
        except (SandboxError, OSError) as error:
            log.warning("sandbox.last_snapshot_failed", label=row.label, error=str(error))
            return None
