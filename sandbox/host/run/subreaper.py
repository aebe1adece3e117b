"""Run a command as plain processes and kill all its descendants, for the unsandboxed host.

It adopts every orphan of the command (PR_SET_CHILD_SUBREAPER), so a daemon that forked twice is still found.
It ends on request, when the command ends, or when the gateway dies, and kills the remaining processes first.
Started as `python -c … ARGV`; imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

from sandbox.host.isolation.process_tree import signal_tree

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36

_AWAITED = (signal.SIGTERM, signal.SIGCHLD)
"""Blocked and waited for: a handler may run before the wait that it is to end, or before the fork returns."""


def main() -> NoReturn:
    """Run `sys.argv[1:]`, kill its remaining descendants, and exit with its code."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        _exec(sys.argv[1:])
    code = _wait_for(child)
    _kill_remaining()
    sys.exit(code)


def _exec(argv: list[str]) -> NoReturn:
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the operator allowed plain processes
    except OSError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)  # noqa: T201 - the command's own stderr
        os._exit(127)


def _wait_for(child: int) -> int:
    """Return the exit code of `child`, or that of a killed command if the end is requested before."""
    while signal.sigwait(_AWAITED) != signal.SIGTERM:
        if (code := _reap(child)) is not None:
            return code
    return 128 + signal.SIGKILL


def _reap(child: int) -> int | None:
    """Reap the processes that have ended; return the exit code of `child` if it is one of them."""
    code, ended = None, -1
    while ended:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
    return code if code is None or code >= 0 else 128 - code


def _kill_remaining() -> None:
    while signal_tree(os.getpid(), signal.SIGKILL):
        try:
            os.wait()
        except ChildProcessError:
            return
