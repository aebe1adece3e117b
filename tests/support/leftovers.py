"""Find processes that tests started and left behind, by the marks they have from their test."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 5.0
"""Seconds for what is about to end."""

_gateways: dict[Path, list[Callable[[], bool]]] = {}
"""The data directories of the gateways that tests started, and how to see that each of these has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process whose test is over."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.test or 'an unknown test'}: {self.command[:300]}"

    def kill(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def watch_jobs_of(data: Path, has_ended: Callable[[], bool]) -> None:
    """Note a gateway whose jobs outlive it, as they should."""
    _gateways.setdefault(data, []).append(has_ended)


def end_jobs() -> None:
    """End the jobs whose gateways have ended for good: their test is over."""
    over = [data for data, ends in _gateways.items() if all(has_ended() for has_ended in ends)]
    for data in over:
        del _gateways[data]
    if over:
        for process in _carriers([f"{data}/" for data in over]):
            process.kill()


def left_behind(marks: Sequence[str]) -> list[Leftover]:
    """Return the processes that have one of the marks and do not end by themselves."""
    until = time.monotonic() + PATIENCE
    found = list(_carriers(marks))
    with ExitStack() as stack:
        while found and time.monotonic() < until:
            if watch := _watched(found[0].pid):
                stack.callback(os.close, watch)
                select.select([watch], [], [], max(0.0, until - time.monotonic()))
            found = list(_carriers(marks))
    return found


def _watched(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _carriers(marks: Sequence[str]) -> Iterator[Leftover]:
    """Yield the processes with a mark in their environment, command line, or working directory."""
    wanted = [mark.encode() for mark in marks]
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        with suppress(OSError):
            environment = (place / "environ").read_bytes()
            command = (place / "cmdline").read_bytes()
            reported = (environment, command, os.fsencode((place / "cwd").readlink()))
            if command and any(mark in one for mark in wanted for one in reported):
                yield Leftover(
                    pid=int(place.name),
                    command=command.replace(b"\0", b" ").decode(errors="replace"),
                    test=_test_of(environment),
                )


def _test_of(environment: bytes) -> str:
    for variable in environment.split(b"\0"):
        if variable.startswith(b"PYTEST_CURRENT_TEST="):
            return variable.partition(b"=")[2].decode(errors="replace")
    return ""
