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
from types import FrameType
from typing import NoReturn

from sandbox.host.isolation.process_tree import signal_tree

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36


class _Terminated(Exception):
    """A signal requested the end."""


def main() -> NoReturn:
    """Run `sys.argv[1:]`, kill its remaining descendants, and exit with its code."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    child = os.fork()
    if child == 0:
        _exec(sys.argv[1:])
    try:
        code = _wait_for(child)
    except _Terminated:
        code = 128 + signal.SIGKILL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_remaining()
    sys.exit(code)


def _exec(argv: list[str]) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the operator allowed plain processes
    except OSError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)  # noqa: T201 - the command's own stderr
        os._exit(127)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_remaining() -> None:
    while signal_tree(os.getpid(), signal.SIGKILL):
        try:
            os.wait()
        except ChildProcessError:
            return
