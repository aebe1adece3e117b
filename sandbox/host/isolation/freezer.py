"""Standing still: what may rest in a sandbox is frozen where it is, and goes on as if nothing had been.

By the job's control group where the kernel can freeze one (version 2); elsewhere every process is stopped by
a signal, parents first, until a look finds none that goes on. The supervisor stands outside its job's group
and is always stopped by a signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from sandbox.host.isolation.process_tree import descendants, is_stopped

_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 0.005


def freeze(supervisor: int, group: Path | None) -> None:
    """Have a job stand still with its supervisor."""
    _send(supervisor, signal.SIGSTOP)
    if _write_freeze(group, "1"):
        return
    end = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < end:
        going = [pid for pid in descendants(supervisor) if not is_stopped(pid)]
        if not going:
            return
        for pid in going:
            _send(pid, signal.SIGSTOP)
        time.sleep(_PAUSE_SECONDS)


def thaw(supervisor: int, group: Path | None) -> None:
    """Have it go on, whichever way it was stopped."""
    _write_freeze(group, "0")
    for pid in descendants(supervisor):
        _send(pid, signal.SIGCONT)
    _send(supervisor, signal.SIGCONT)


def _write_freeze(group: Path | None, word: str) -> bool:
    if group is None:
        return False
    try:
        (group / "cgroup.freeze").write_text(word, encoding="ascii")
    except OSError:
        return False
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
