"""Freeze and thaw the jobs of a suspended sandbox.

The job's control group is frozen if the kernel can (version 2). Otherwise every process gets SIGSTOP,
parents first, until none is left running. The supervisor is outside its job's group and is always stopped by
a signal.
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
    """Freeze a job with its supervisor."""
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
    """Thaw a job, however it was frozen."""
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
