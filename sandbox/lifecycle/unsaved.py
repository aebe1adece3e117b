"""The sandboxes of which no snapshot could be stored, and when each is tried again.

They are kept in memory. After a restart they are found by their rows (`Reservation.is_unsaved`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.lifecycle.reservations import SandboxRequest

FIRST_DELAY = timedelta(seconds=15)
MAX_DELAY = timedelta(minutes=10)
_MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """How often a sandbox could not be saved, and when it is due again."""

    request: SandboxRequest
    count: int
    due: datetime


class UnsavedSandboxes:
    """Sandboxes of this process whose last snapshot failed. The delay doubles with each failure."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._failures: dict[str, _Failure] = {}

    def add(self, request: SandboxRequest) -> None:
        """Record that a snapshot could not be stored, perhaps again."""
        known = self._failures.get(request.spec.label)
        count = known.count + 1 if known else 1
        delay = min(MAX_DELAY, FIRST_DELAY * 2 ** min(count - 1, _MAX_DOUBLINGS))
        self._failures[request.spec.label] = _Failure(request=request, count=count, due=self._clock() + delay)

    def recover(self, request: SandboxRequest) -> None:
        """Make a sandbox due that an earlier process may not have saved."""
        due = _Failure(request=request, count=0, due=self._clock())
        self._failures.setdefault(request.spec.label, due)

    def discard(self, label: str) -> None:
        """Record that a sandbox has been saved, or is no more."""
        self._failures.pop(label, None)

    def list_due(self) -> Sequence[SandboxRequest]:
        """Return the sandboxes whose delay is over."""
        now = self._clock()
        return [one.request for one in self._failures.values() if one.due <= now]
