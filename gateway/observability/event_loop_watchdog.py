"""A watchdog that ends the process when its event loop is blocked.

A process whose loop is blocked has lost its leases, answers no request and cannot stop in order. Its
supervisor can only start it again once it has ended.

The loop beats once a second. A thread ends the process when beats are missing for `limit` seconds in which
the thread itself was on time: a process that was frozen, or a machine that is overloaded, is not blocked.
Code that holds the interpreter's lock (a backtracking pattern, an extension) stops that thread too. For this
case every beat sets a timer of `2 * limit` seconds of CPU time, which the kernel ends the process with.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)

BLOCKED_EXIT_CODE = 70
"""The exit code of a process whose event loop was blocked (EX_SOFTWARE of sysexits.h)."""

BEAT_SECONDS = 1.0

_REPORT_SECONDS = 5.0
"""Seconds for the log line: the blocked thread may hold the lock of the log."""


@contextmanager
def event_loop_watched(limit: float) -> Iterator[None]:
    """End this process when the running loop is blocked for `limit` seconds during the block; 0: never."""
    if not limit:
        yield
        return
    watchdog = _EventLoopWatchdog(asyncio.get_running_loop(), limit)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


class _EventLoopWatchdog:
    """Watches the loop of the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        self._loop = loop
        self._limit = limit
        self._interval = min(BEAT_SECONDS, limit / 4)
        self._beats = 0
        self._next_beat: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="event-loop-watchdog", daemon=True)

    def start(self) -> None:
        """Start the beats and the thread; the kernel may give the signal to any thread, so all are shown."""
        faulthandler.register(signal.SIGPROF, file=sys.__stderr__ or 2, all_threads=True, chain=True)
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop both."""
        self._stopped.set()
        if self._next_beat is not None:
            self._next_beat.cancel()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)

    def _beat(self) -> None:
        self._beats += 1
        signal.setitimer(signal.ITIMER_PROF, 2 * self._limit)
        self._next_beat = self._loop.call_later(self._interval, self._beat)

    def _watch(self) -> None:
        blocked, seen, before = 0.0, self._beats, time.monotonic()
        while not self._stopped.wait(self._interval):
            now = time.monotonic()
            late = seen == self._beats
            blocked = blocked + min(now - before, 2 * self._interval) if late else 0.0
            seen, before = self._beats, now
            if blocked >= self._limit:
                _end_process(blocked)


def _end_process(blocked: float) -> None:
    """Log the stack of the main thread and end the process at once, as a kill would."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented
    stack = "".join(traceback.format_stack(frame)) if frame else ""
    report = threading.Thread(target=_report, args=(blocked, stack), daemon=True)
    report.start()
    report.join(_REPORT_SECONDS)
    os._exit(BLOCKED_EXIT_CODE)


def _report(blocked: float, stack: str) -> None:
    log.critical(
        "event_loop.blocked",
        seconds=round(blocked),
        remedy="the process ends itself so that it is started again (watchdog_timeout)",
        stack=stack,
    )
    sys.stdout.flush()
    sys.stderr.flush()
