"""Run the tests in several workers, which are forked from one process that has collected them all.

    python collected_run.py WORKERS PYTEST-ARGUMENTS...

A worker of pytest-xdist imports all test modules, which takes ten seconds. A forked one finds them imported,
and shares their memory with the others. Stand-ins of cloud services are forked from it too. The tests' files
are in memory if it is large enough, and are gone afterwards; `--basetemp DIRECTORY` keeps them.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from service_processes import COLLECTED
from session import fast_disk, listening
from zygote import COLLECTION_THRESHOLDS, Zygote, run

HERE = Path(__file__).resolve().parent


DATA = "data ä #"
"""The directory of the tests' files. People's paths have spaces and characters beyond ASCII too."""


def collect(arguments: list[str]) -> None:
    """Collect the tests, which leaves their modules imported; ends the run if one cannot be collected."""
    with redirect_stdout(StringIO()) as said:
        code = pytest.main([*arguments, "--collect-only", "-q"])
    if code != pytest.ExitCode.OK:
        sys.exit(said.getvalue())
    sys.stdout.write(f"{said.getvalue().splitlines()[-1]}\n")
    sys.stdout.flush()
    sys.path.append(str(HERE))  # an order replaces the first entry
    assert [task.name for task in Path("/proc/self/task").iterdir()] == [str(os.getpid())]
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)


def main(workers: str, arguments: list[str]) -> int:
    """Collect, and run pytest with workers that are forked from here; returns its exit code."""
    collect(arguments)
    disk = fast_disk()
    with tempfile.TemporaryDirectory("", "dovecote-workers-", disk, ignore_cleanup_errors=True) as directory:
        place = os.environ[COLLECTED] = f"{directory}/socket"
        read, write = os.pipe()
        worker = f"popen//python={sys.executable} {HERE / 'forked_worker.py'} {place}"
        zygote = Zygote(listening(place), lambda: None, until=read)
        data = ["--basetemp", f"{directory}/{DATA}"] if disk else []
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", *data, *arguments, "--tx", f"{workers}*{worker}"],
            pass_fds=[write],
        )
        os.close(write)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        order = zygote.serve()
        if order is not None:
            order.take_on()
            run(order)
        return tests.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
