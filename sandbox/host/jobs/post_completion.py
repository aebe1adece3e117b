"""Report a job's end to the gateway over its socket. Runs alone inside the sandbox's namespaces.

Runs as a file with any python3 (3.8 or newer), imports the standard library only, reads a JSON object
{socket, path, token, body} from stdin and prints the HTTP status, 0 if there was no answer. The token is in
no environment and no argument, and no command of the job is alive when this starts.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from pathlib import Path

TIMEOUT_SECONDS = 20.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("gateway", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        os.chdir(Path(self._path).parent)  # the kernel takes about a hundred bytes of a path
        self.sock.connect(Path(self._path).name)


def post(socket_path: str, path: str, token: str, body: str) -> int:
    """POST `body` and return the status, 0 if there was no answer."""
    connection = _UnixConnection(socket_path)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, body=body.encode("utf-8"), headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(post(request["socket"], request["path"], request["token"], request["body"]))  # noqa: T201 - its answer
