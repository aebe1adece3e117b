"""Run a command, and stop all its processes for a moment now and then, as a machine that pauses does.

    python paused_run.py [--every SECONDS] [--pause SECONDS] COMMAND...

A test whose result depends on a short time fails here, and now and then on a busy machine. Processes that
were stopped before stay stopped. Needs Linux's /proc; the exit code is that of the command.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from sandbox.host.isolation.process_tree import descendants, is_stopped


def send(number: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to those processes that still exist."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main() -> int:
    """Run the command, with pauses."""
    parser = argparse.ArgumentParser(description="Run a command whose processes pause now and then.")
    parser.add_argument("--every", type=float, default=5.0, help="mean time between pauses, in seconds")
    parser.add_argument("--pause", type=float, default=0.9, help="length of a pause, in seconds")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    process = subprocess.Popen(given.command, start_new_session=True)
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0.5, 1.5) * given.every)
        if process.returncode is None:
            found = [process.pid, *descendants(process.pid)]
            paused = [one for one in found if not is_stopped(one)]
            try:
                send(signal.SIGSTOP, paused)
                time.sleep(given.pause)
            finally:
                send(signal.SIGCONT, reversed(paused))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
