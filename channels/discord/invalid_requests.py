"""Count invalid requests, and say when to pause.

Discord bans an IP address after 10,000 responses with status 401, 403 or 429 in ten minutes. A 429 of scope
`shared` does not count. The count is per process; replicas behind one address add up, so the pause begins
early.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW_SECONDS = 600.0
MAX_INVALID_REQUESTS = 5_000
"""Half of what Discord allows."""

INVALID_STATUSES = frozenset({401, 403, 429})


class InvalidRequests:
    """The times of the last invalid requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MAX_INVALID_REQUESTS)

    def record(self, status: int, headers: Mapping[str, str]) -> None:
        """Record a response."""
        is_shared = headers.get("X-RateLimit-Scope") == "shared"
        if status in INVALID_STATUSES and not is_shared:
            self._times.append(self._clock())

    def wait(self) -> float:
        """Return the seconds until a call may be made; zero while there are few invalid requests."""
        if len(self._times) < MAX_INVALID_REQUESTS:
            return 0.0
        return max(0.0, self._times[0] + WINDOW_SECONDS - self._clock())
