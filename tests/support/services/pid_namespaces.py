"""The processes that bubblewrap has started in a pid namespace, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from asyncio.subprocess import Process
from pathlib import Path

END_SECONDS = 20.0


def child_pids(parent: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def descendant_pids(parent: int) -> list[int]:
    """Return the children of a process, and theirs."""
    return [pid for child in child_pids(parent) for pid in (child, *descendant_pids(child))]


async def kill_with_namespace(bwrap: Process) -> None:
    """Kill bwrap, and return when no process of its pid namespace is left.

    The kernel kills the namespace's first process some time after bwrap has ended (`PR_SET_PDEATHSIG`), and
    reports that process's end when every other one of the namespace has ended (pid_namespaces(7)).
    """
    with contextlib.ExitStack() as descriptors:
        ends = []
        for pid in child_pids(bwrap.pid):
            with contextlib.suppress(ProcessLookupError):
                ends.append(os.pidfd_open(pid))
                descriptors.callback(os.close, ends[-1])
        with contextlib.suppress(ProcessLookupError):
            bwrap.kill()
        await bwrap.wait()
        for end in ends:
            ready, _, _ = await asyncio.to_thread(select.select, [end], [], [], END_SECONDS)
            assert ready, "a process of the namespace has not ended"
