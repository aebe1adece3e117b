"""Find and kill the descendants of a process by /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_SPIN, _SPINS = 0.0002, 500
_STOPPED_STATES = frozenset({b"T", b"t", b"Z", b"X", b""})


def parent_of(pid: int) -> int | None:
    """Return the parent of a live process, or None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[1])


def is_namespace_init(pid: int) -> bool:
    """Return whether a live process is the first one of a pid namespace below ours."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    status = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    numbers = status.get("NSpid", [])
    return len(numbers) > 1 and numbers[-1] == "1" and status.get("State", ["Z"])[0] not in {"Z", "X"}


def kill_tree(root: int) -> None:
    """Kill a process and its descendants, even while it forks: it is stopped first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
        for _ in range(_SPINS):
            if _state(root) in _STOPPED_STATES:
                break
            time.sleep(_SPIN)
        signal_tree(root, signal.SIGKILL)
        os.kill(root, signal.SIGKILL)


def _state(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return b""


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped or dead."""
    return _state(pid) in _STOPPED_STATES


def reap(pid: int) -> None:
    """Reap a dead process if it is our child: a container's first process inherits all orphans."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def children_by_parent() -> dict[int, list[int]]:
    """Return the live children of each process that has any."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    return children


def descendants(root: int) -> Iterator[int]:
    """Yield the live processes below `root`, parents before children."""
    children = children_by_parent()
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop(0)
        yield pid
        waiting.extend(children.get(pid, ()))


def signal_tree(root: int, number: signal.Signals, *, exclude: int = 0) -> int:
    """Send a signal to every process below `root` except `sparing`; return how many there were.

    Parents come first: killing the first process of a pid namespace kills all others in it.
    """
    count = 0
    for pid in descendants(root):
        if pid != exclude:
            count += 1
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
    return count
