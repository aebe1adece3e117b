"""Faults of the simulated Discord: failing calls, and the ban for invalid requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from channels.discord.simulator.rest import RequestBody
from channels.discord.simulator.world import ApiFailure

CONTENT_KINDS = ("files", "buttons", "text")
"""What a message may contain; one with neither files nor buttons is text."""


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` calls of a name, kind of content and channel (None: any)."""

    times: int
    name: str | None = None
    failure: ApiFailure | None = None
    cut_at: str = ""
    seconds: float = 0.0
    only: str | None = None
    channel: str | None = None

    def matches(self, name: str, body: RequestBody, channel: str) -> bool:
        """Return whether a call has this fault."""
        is_meant = self.only in {None, _content_kind(body)} and self.channel in {None, channel}
        return self.times > 0 and self.name in {None, name} and is_meant


def _content_kind(body: RequestBody) -> str:
    if body.files:
        return "files"
    fields = body.fields if isinstance(body.fields, dict) else {}
    return "buttons" if fields.get("components") else "text" if fields.get("content") else ""


@dataclass(slots=True)
class InvalidRequestBan:
    """The ban of an address after too many 401, 403 and 429 in ten minutes, answered by the proxy."""

    clock: Callable[[], float]
    most: int = 10_000
    window: float = 600.0
    seconds: float = 3600.0
    _times: deque[float] = field(default_factory=deque)
    _until: float = 0.0

    def record(self, status: int, *, is_shared: bool) -> None:
        """Count a response; a shared limit's does not count."""
        if status not in {401, 403, 429} or is_shared:
            return
        now = self.clock()
        self._times.append(now)
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        if len(self._times) >= self.most:
            self._until = now + self.seconds
            self._times.clear()

    @property
    def seconds_left(self) -> float:
        """How long the ban still lasts."""
        return max(0.0, self._until - self.clock())
