"""Start the process of a run with its pipes, in a thread of the provider."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sandbox.host.isolation import seccomp
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.run.job_spec import memfd_of
from sandbox.host.run.spawn import ChildProcess, Program, spawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a run; `secret` holds bubblewrap arguments, passed by a descriptor."""

    prefix: Sequence[str]
    program: Sequence[str]
    suffix: Sequence[str]
    secret: Sequence[str] = ()
    environment: dict[str, str]
    group: Cgroup
    directory: str = "/"

    def argv(self, passed: Sequence[int]) -> list[str]:
        """Return the whole command line; `passed` are the numbers of the descriptors for bubblewrap."""
        return [*self.prefix, *self.program, *_bubblewrap_arguments(passed), *self.suffix]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProcess:
    """A started process and the gateway's ends of its pipes."""

    process: ChildProcess
    stdin: int | None
    stdout: int
    stderr: int
    status: int


def start_process(launch: Launch, *, stdin: bool) -> LaunchedProcess:
    """Start the process in the calling thread; raises OSError with every descriptor closed."""
    with ExitStack() as theirs, ExitStack() as ours:
        source, feed = _pipe(theirs, ours) if stdin else (_nothing(theirs), None)
        (out, out_end), (error, error_end), (status, status_end) = (_pipe(ours, theirs) for _ in range(3))
        program = Program(
            argv=launch.argv,
            environment=launch.environment,
            directory=launch.directory,
            standard=(source, out_end, error_end),
            passed=_descriptors(launch, status_end, theirs) if launch.secret else (),
        )
        process = spawn(program)
        ours.pop_all()
    return LaunchedProcess(process=process, stdin=feed, stdout=out, stderr=error, status=status)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return a new pipe's ends to read and to write; each is closed with its owner."""
    ends = os.pipe2(os.O_CLOEXEC)
    for owner, end in zip((reader, writer), ends, strict=True):
        owner.callback(os.close, end)
    return ends


def _nothing(owner: ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    owner.callback(os.close, descriptor)
    return descriptor


def _descriptors(launch: Launch, status: int, owner: ExitStack) -> list[int]:
    """Return what bubblewrap inherits: its arguments, the pipe for its status, the filter of system calls."""
    secret = memfd_of(launch.secret)
    owner.callback(os.close, secret)
    system_calls = seccomp.open_filter()
    if system_calls is None:
        return [secret, status]
    owner.callback(os.close, system_calls)
    return [secret, status, system_calls]


def _bubblewrap_arguments(passed: Sequence[int]) -> Sequence[str]:
    """Return the arguments that name the descriptors of `_descriptors`."""
    if not passed:
        return ()
    secret, status, *system_calls = passed
    named = ("--args", str(secret), "--json-status-fd", str(status))
    return (*named, *seccomp.arguments(next(iter(system_calls), None)), "--")
