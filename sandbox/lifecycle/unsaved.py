"""The sandboxes of which a snapshot is due: after each use, and again after a failure, with a delay.

They are kept in memory. After a restart they are found by their rows (`Reservation.is_unsaved`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.lifecycle.reservations import SandboxRequest

FIRST_DELAY = timedelta(seconds=15)
MAX_DELAY = timedelta(minutes=10)
_MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _DueSnapshot:
    """When a sandbox is to be saved, after how many failures."""

    request: SandboxRequest
    failures: int
    due: datetime


class UnsavedSandboxes:
    """Sandboxes of this process that are to be saved. The delay doubles with each failure.

    `added` is set when one is due at once.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._due: dict[str, _DueSnapshot] = {}
        self.added = asyncio.Event()

    def add_used(self, request: SandboxRequest) -> None:
        """Make a sandbox due at once that was used since its last snapshot."""
        self._due[request.spec.label] = _DueSnapshot(request=request, failures=0, due=self._clock())
        self.added.set()

    def begin(self, label: str) -> int:
        """Take a sandbox out while it is saved, so that a use meanwhile makes it due; return its failures."""
        found = self._due.pop(label, None)
        return found.failures if found else 0

    def restore(self, request: SandboxRequest, failures: int) -> None:
        """Make a sandbox due again that could not be saved because it is in use."""
        due = _DueSnapshot(request=request, failures=failures, due=self._clock())
        self._due.setdefault(request.spec.label, due)

    def add(self, request: SandboxRequest, failures: int = 0) -> None:
        """Record that a snapshot could not be stored, after so many failures; a use since is due at once."""
        if request.spec.label in self._due:
            return
        count = failures + 1
        delay = min(MAX_DELAY, FIRST_DELAY * 2 ** min(count - 1, _MAX_DOUBLINGS))
        self._due[request.spec.label] = _DueSnapshot(
            request=request, failures=count, due=self._clock() + delay
        )

    def recover(self, request: SandboxRequest) -> None:
        """Make a sandbox due that an earlier process may not have saved."""
        self.restore(request, 0)

    def discard(self, label: str) -> None:
        """Record that a sandbox has been saved, or is no more."""
        self._due.pop(label, None)

    def list_due(self) -> Sequence[SandboxRequest]:
        """Return the sandboxes whose delay is over."""
        now = self._clock()
        return [one.request for one in self._due.values() if one.due <= now]
