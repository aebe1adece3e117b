"""Set the resource limits of every run, and those that replace missing control groups.

A one-line shell sets them before bubblewrap starts, not the gateway's fork: a fork of a threaded process may
only exec. Units of `ulimit` are POSIX's: -c and -f in blocks of 512 bytes, -d in KiB.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from pathlib import Path

from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.cgroups import CgroupLayout
from sandbox.model import SandboxSpec

OPEN_FILES = 4096
NAMESPACED_NPROC_KERNEL = (5, 14)
"""Since this kernel RLIMIT_NPROC counts per user namespace; before, it counts all processes of the user."""

_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
JOIN_FAILED = 125


def limit_argv(layout: CgroupLayout, spec: SandboxSpec, group: Cgroup, file_bytes: int) -> list[str]:
    """Return the argv that sets limits, enters the groups and then executes the program after it."""
    soft = [f"ulimit -c 0; ulimit -f {_capped(resource.RLIMIT_FSIZE, file_bytes) // 512}"]
    soft.append(f"ulimit -n {_capped(resource.RLIMIT_NOFILE, OPEN_FILES)}; umask 022")
    if "memory" not in layout:
        soft.append(f"ulimit -d {_capped(resource.RLIMIT_DATA, spec.memory_mb * 1024 * 1024) // 1024}")
    joins = (str(path / "cgroup.procs") for path in group.joins)
    return ["/bin/sh", "-c", "; ".join([*soft, _JOIN]), "sh", *joins, "--"]


def process_limit(layout: CgroupLayout, spec: SandboxSpec, *, own_namespace: bool) -> Sequence[str]:
    """Return the argv prefix that limits the number of processes if control groups do not."""
    if "pids" in layout:
        return ()
    precise = own_namespace and _kernel() >= NAMESPACED_NPROC_KERNEL
    wanted = _capped(resource.RLIMIT_NPROC, spec.pids if precise else spec.pids + _threads_of_user())
    script = f'ulimit -u {wanted} 2>/dev/null || ulimit -p {wanted}; exec "$@"'
    return ("/bin/sh", "-c", script, "sh")


def _capped(kind: int, wanted: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def _threads_of_user() -> int:
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                total += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue
    return total
