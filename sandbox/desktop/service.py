"""Inside the sandbox: a service that answers one request at a time.

It listens on a unix socket in HOME: commands on the host run in network namespaces of their own, which share
files and no ports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SOCKET = "socket"
MAX_REQUEST_BYTES = 256 * 1024
SEND_SECONDS = 30.0

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Return the reply to a request; an error is the field `error` of the reply."""


def serve(directory: Path, answer: Answer) -> None:
    """Answer requests until the process is ended."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(directory)  # a socket's path has at most 108 bytes, so it is relative
    with suppress(FileNotFoundError):
        Path(SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen(4)
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError, ValueError):
                connection.settimeout(SEND_SECONDS)
                _answer(connection, answer)


def _answer(connection: socket.socket, answer: Answer) -> None:
    with connection.makefile("rb") as received:
        request = json.loads(received.readline(MAX_REQUEST_BYTES))
    connection.sendall(json.dumps(answer(request)).encode() + b"\n")
