"""Inside the sandbox: pass a request to a service, and write the picture of its reply into the workspace."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

NOT_RUNNING = 91
"""The exit code when the service does not listen."""

MAX_REPLY_BYTES = 64 * 1024 * 1024


def call(directory: Path, request: dict[str, Any], *, wait: float) -> dict[str, Any] | None:
    """Return the reply of the service, or None if none listens within so many seconds."""
    service = connect(directory, wait)
    if service is None:
        return None
    with service:
        service.settimeout(float(request["limit"]))
        service.sendall(json.dumps(request).encode() + b"\n")
        with service.makefile("rb") as received:
            reply = json.loads(received.readline(MAX_REPLY_BYTES) or b'{"error": "the service ended"}')
    return save_picture(reply, request)


def connect(directory: Path, wait: float) -> socket.socket | None:
    """Return a connection to the service in a directory, or None."""
    until = time.monotonic() + wait
    here = Path.cwd()
    while True:
        service = socket.socket(socket.AF_UNIX)
        try:
            os.chdir(directory)
            service.connect("socket")
        except OSError:
            service.close()
            if time.monotonic() >= until:
                return None
            time.sleep(0.1)
        else:
            return service
        finally:
            os.chdir(here)


def save_picture(reply: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Write the picture of a reply to the path of the request; return the reply with its path instead."""
    picture = reply.pop("image", None)
    if picture is None:
        return reply
    content = base64.b64decode(picture)
    path = Path(request["path"]).with_suffix(".png" if content.startswith(b"\x89PNG") else ".jpg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        return {**reply, "error": f"{path} cannot be written: {error.strerror}"}
    return {**reply, "path": str(path)}


def main() -> None:
    """Read a request from standard input and print the reply."""
    request = json.loads(sys.stdin.buffer.read())
    reply = call(Path(os.environ["HOME"], ".dovecote", request["service"]), request, wait=request["wait"])
    if reply is None:
        sys.exit(NOT_RUNNING)
    print(json.dumps(reply, ensure_ascii=False))  # noqa: T201 - the reply of this program
