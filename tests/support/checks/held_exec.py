"""Hold a program's start between the new process and its exec, by a lease on the program's file."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldProgram:
    """A program that no process can execute before `release`; `wanted` is set when one tries to.

    The kernel gives a lease up by itself after 45 seconds (`/proc/sys/fs/lease-break-time`).
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.wanted = asyncio.Event()

    def release(self) -> None:
        """Let the process that waits execute the program."""
        fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


@contextmanager
def held_program(path: Path, script: str) -> Iterator[HeldProgram]:
    """Write a shell script that is held; the kernel reports by SIGIO that a process opens it."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    loop = asyncio.get_running_loop()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    held = HeldProgram(descriptor)
    loop.add_signal_handler(signal.SIGIO, held.wanted.set)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield held
    finally:
        os.close(descriptor)
        loop.remove_signal_handler(signal.SIGIO)
