"""Start processes by posix_spawn(3), while every other thread of the interpreter continues.

`subprocess` keeps the interpreter's lock from vfork until the new process has called exec. On a busy machine
the event loop stops for that long, in whatever thread the call is made. A call by ctypes releases the
lock, and glibc suspends only the calling thread.

The kernel ends a process with PR_SET_PDEATHSIG (bubblewrap's --die-with-parent) when the thread that started
it ends. The threads of an executor end with the executor.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_libc, _unlocked_libc = ctypes.PyDLL(None), ctypes.CDLL(None)
"""The C library, called with the interpreter's lock and without it."""

HAS_POSIX_SPAWN = hasattr(_libc, "posix_spawn_file_actions_addclosefrom_np")
"""Whether posix_spawn can do all that is needed: since glibc 2.34. Without it, `fork_exec` is used."""

_STRUCT_BYTES = 1024
"""More than any of the structures of spawn.h and signal.h has."""
_SETSIGDEF, _SETSID = 0x04, 0x80
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the interpreter ignores; a program expects their default actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to start in a session of its own, with `standard` as its stdin, stdout and stderr.

    Beyond these it has the `passed` descriptors and no others. `argv` is called with their numbers in it.
    """

    argv: Callable[[Sequence[int]], Sequence[str]]
    environment: Mapping[str, str]
    directory: str
    standard: tuple[int, int, int]
    passed: Sequence[int] = ()


class ChildProcess:
    """A child of this process until `poll` or `wait` has reaped it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that killed it; None while it runs."""
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        """Wait until it has ended and return what `poll` returns then."""
        while self.returncode is None:
            self._reap(0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reap(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # the kernel reaps children where SIGCHLD is ignored; the code is lost
            pid, status = self.pid, 0
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def spawn(program: Program) -> ChildProcess:
    """Start a program in the calling thread; raises OSError if that is not possible."""
    return posix_spawn(program) if HAS_POSIX_SPAWN else fork_exec(program)


def posix_spawn(program: Program) -> ChildProcess:
    """Start a program without the interpreter's lock; its passed descriptors are 3, 4 and so on."""
    wanted = (*program.standard, *program.passed)
    argv = program.argv(range(len(program.standard), len(wanted)))
    path, pid = os.fsencode(argv[0]), ctypes.c_int()
    words = _strings([os.fsencode(word) for word in argv])
    variables = _strings(
        [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in program.environment.items()]
    )
    with ExitStack() as opened:
        actions = _file_actions(program.directory, _without_low_numbers(wanted, opened), opened)
        code = _unlocked_libc.posix_spawn(ctypes.byref(pid), path, actions, _attributes(), words, variables)
    if code:  # of the two, the C library does not report which is meant
        name = argv[0] if Path(program.directory).is_dir() else program.directory
        raise OSError(code, os.strerror(code), name)
    return ChildProcess(pid.value)


def fork_exec(program: Program) -> ChildProcess:
    """Start a program by `subprocess`, with the interpreter's lock; passed descriptors keep their numbers."""
    stdin, stdout, stderr = program.standard
    started = subprocess.Popen(  # noqa: S603 - the sandbox is what runs the account's script
        program.argv(program.passed),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=program.passed,
        env=program.environment,
        cwd=program.directory,
        start_new_session=True,
    )
    started.returncode = 0  # `ChildProcess` reaps it
    return ChildProcess(started.pid)


def _strings(words: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """Return an array of C strings, ended by NULL."""
    if any(b"\0" in word for word in words):
        raise ValueError("an argument or a variable contains NUL")
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _without_low_numbers(wanted: Sequence[int], opened: ExitStack) -> list[int]:
    """Return the descriptors, or duplicates of those that the program's own would replace."""
    found = list(wanted)
    for number, descriptor in enumerate(wanted):
        if descriptor < len(wanted):
            found[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(wanted))
            opened.callback(os.close, found[number])
    return found


def _file_actions(
    directory: str, descriptors: Sequence[int], opened: ExitStack
) -> ctypes.Array[ctypes.c_char]:
    """Return what the new process does before exec: renumber descriptors, close all others, chdir."""
    actions = ctypes.create_string_buffer(_STRUCT_BYTES)
    _check(_libc.posix_spawn_file_actions_init(actions))
    opened.callback(_libc.posix_spawn_file_actions_destroy, actions)
    for number, descriptor in enumerate(descriptors):
        _check(_libc.posix_spawn_file_actions_adddup2(actions, descriptor, number))
    _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, len(descriptors)))
    _check(_libc.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(directory)))
    return actions


@cache
def _attributes() -> ctypes.Array[ctypes.c_char]:
    """Return the attributes of every program: a session of its own, default actions of some signals."""
    attributes, signals = (ctypes.create_string_buffer(_STRUCT_BYTES) for _ in range(2))
    _check(_libc.posix_spawnattr_init(attributes))
    _check(_libc.posix_spawnattr_setflags(attributes, _SETSIGDEF | _SETSID))
    _libc.sigemptyset(signals)
    for number in _DEFAULT_SIGNALS:
        _libc.sigaddset(signals, number)
    _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
    return attributes


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
