"""Stand-ins of cloud services in processes of their own: one each for a test process, ended with it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO

HERE = Path(__file__).parent
SERVICES = HERE / "services"
COLLECTED = "TESTS_OF_DOVECOTE_COLLECTED"
"""Names the socket of the process that has collected all tests: what it forks finds nearly all imported."""


@cache
def service_url(module: str) -> str:
    """Return the URL of the simulator in a module of `services`; it is started on first use."""
    directory = Path(tempfile.mkdtemp(prefix="dovecote-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    root = HERE.parents[1]
    env = {
        "PYTHONPATH": f"{root}:{HERE}:{SERVICES}",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(directory),
    }
    place = os.environ.get(COLLECTED)
    url = _fork(place, module, str(directory), env) if place else _start(module, str(directory), env)
    assert url, f"{module} did not start"
    return url


def _start(module: str, directory: str, env: dict[str, str]) -> str:
    """Start an interpreter with the module, and return its first line."""
    child = subprocess.Popen(
        [sys.executable, str(SERVICES / f"{module}.py"), directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )

    def end() -> None:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)

    atexit.register(end)
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _fork(place: str, module: str, directory: str, env: dict[str, str]) -> str:
    """Have the module run in a forked process, and return its first line."""
    given, mine = os.pipe()
    output, theirs = os.pipe()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(place)
    order = {"module": module, "words": [directory], "env": env, "cwd": str(SERVICES)}
    socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [given, theirs, 2])
    os.close(given)
    os.close(theirs)
    answers = connection.makefile("rb")
    assert int(answers.readline()) > 0
    atexit.register(_end, mine, connection, answers)
    with os.fdopen(output) as printed:
        return printed.readline().strip()


def _end(mine: int, connection: socket.socket, answers: BinaryIO) -> None:
    """Close the input of a forked process, and wait until it has ended."""
    os.close(mine)
    connection.settimeout(20)
    answers.readline()
    connection.close()
