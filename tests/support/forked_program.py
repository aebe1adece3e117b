"""Run `dovecote` for a shell, forked from the zygote of the test run instead of started: it imports nothing.

python -I forked_program.py WORDS...
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def run_forked(zygote: str, module: str, words: list[str]) -> int:
    """Have a zygote fork the module, pass signals on to it, and return its exit code as a shell has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(zygote)
        order = {"module": module, "words": words, "env": dict(os.environ), "cwd": str(Path.cwd())}
        line = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(connection, [line], [0, 1, 2])
        connection.sendall(line[sent:])
        answers = connection.makefile()
        pid = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: os.kill(pid, received))
        code = int(answers.readline())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run_forked(f"{os.environ['TESTS_OF_DOVECOTE']}/zygote", "gateway", sys.argv[1:]))
