"""One run's control group: what its processes join, and how all of them are ended at once."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The control groups of one run or job; `own` is made for it alone, None where there are none.

    `joins` are the groups its processes enter: `own` and, with version 1, the sandbox's in the other
    hierarchies. Nothing here waits; ending is a matter of asking again.
    """

    joins: tuple[Path, ...] = ()
    own: Path | None = None

    def kill(self) -> None:
        """Kill every process of the group, those that are being forked included where the kernel can."""
        if self.own is None:
            return
        with contextlib.suppress(OSError):
            (self.own / "cgroup.kill").write_text("1")
            return
        with contextlib.suppress(OSError):  # version 1: first stop the forking, then kill what there is
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
        """Remove the group if nothing lives in it; True when it is gone."""
        if self.own is None:
            return True
        try:
            self.own.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
