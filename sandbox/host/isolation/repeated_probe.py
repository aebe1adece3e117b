"""Keep what a probe of this host has found: for good if it works, for a while if it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

KEPT_FOR = 5
"""A failure is kept for this many times as long as its probe took; then a caller probes again."""

Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


class RepeatedProbe(Generic[Arguments, Found]):
    """A probe that is repeated until it succeeds once for its arguments.

    A host may lack processes or time for a moment. Of several threads that ask, one runs the probe.
    """

    def __init__(
        self,
        probe: Callable[Arguments, Found],
        *,
        works: Callable[[Found], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._works = works
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[object, tuple[Found, float]] = {}

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        """Return what the probe finds now, or what it found a short while ago."""
        asked = self._clock()
        key = (args, tuple(sorted(kwargs.items())))
        with self._lock:
            kept = self._found.get(key)
            if kept is not None and (self._works(kept[0]) or asked < kept[1]):
                return kept[0]
            began = self._clock()
            found = self._probe(*args, **kwargs)
            ended = self._clock()
            self._found[key] = (found, ended + KEPT_FOR * (ended - began))
            return found
