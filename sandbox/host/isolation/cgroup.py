"""The control group of one run: join it, signal its processes, and remove it."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The control groups of one run or job; `own` is created for it alone, or None if there are none.

    `joins` are the groups that its processes enter: `own` and, with version 1, the sandbox's groups in the
    other hierarchies. No method waits; callers poll until the group is empty.
    """

    joins: tuple[Path, ...] = ()
    own: Path | None = None

    def kill(self) -> None:
        """Kill every process of the group, including those being forked if the kernel supports it."""
        if self.own is None:
            return
        with contextlib.suppress(OSError):
            (self.own / "cgroup.kill").write_text("1")
            return
        with contextlib.suppress(OSError):  # version 1: stop forks first, then kill
            (self.own / "pids.max").write_text("0")
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def processes(self) -> list[int]:
        """Return the live processes of the group."""
        if self.own is None:
            return []
        try:
            return [int(line) for line in (self.own / "cgroup.procs").read_text().split() if line != "0"]
        except OSError:
            return []

    def remove(self) -> bool:
        """Remove the group if it is empty; return whether it is gone."""
        if self.own is None:
            return True
        try:
            self.own.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
