"""Report a job's end to the gateway once and print the HTTP status, 0 if there was no answer.

Runs inside an instance with any python3 (3.7 or newer) and the standard library only. Reads lines from stdin:
socket, base URL, path, token, exit code. Arguments: the log, and how many bytes of it to send.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import urllib.parse
from pathlib import Path

TIMEOUT_SECONDS = 20.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("gateway", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def connect(path: str, url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection to the gateway and the prefix of its paths."""
    if path:
        return _UnixConnection(path), ""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=TIMEOUT_SECONDS), parts.path.rstrip("/")


def body(log: str, limit: int, code: int) -> bytes:
    """Return the report as JSON."""
    with Path(log).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit))
        text = file.read().decode("utf-8", "replace")
    while len(text.encode()) > limit:
        text = text[max(1, len(text) // 8) :]
    fields = {"exit_code": code, "output": text}
    if size > limit or Path(log).with_name("truncated").exists():
        fields["truncated"] = True
    return json.dumps(fields, ensure_ascii=False).encode()


def main() -> int:
    """Post once and return the status."""
    path, url, route, token, code = sys.stdin.read().split("\n")[:5]
    connection, before = connect(path, url)
    fields = body(sys.argv[1], int(sys.argv[2]), int(code))
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    try:
        connection.request("POST", before + route, fields, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    print(main())  # noqa: T201 - its answer
