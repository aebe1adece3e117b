"""Inside the sandbox: the service that owns the browser and answers one request at a time.

It listens on a unix socket in HOME: commands on the host run in network namespaces of their own, which share
files and no ports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox.desktop import browser_actions
from sandbox.desktop.browser import Browser, find_program
from sandbox.desktop.cdp import BrowserError

SOCKET = "socket"
MAX_REQUEST_BYTES = 256 * 1024
SEND_SECONDS = 30.0


def serve(directory: Path) -> None:
    """Answer requests until the process is ended."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(directory)  # a socket's path has at most 108 bytes, so it is relative
    with suppress(FileNotFoundError):
        Path(SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen(4)
        browser: Browser | None = None
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError, ValueError):
                connection.settimeout(SEND_SECONDS)
                browser = _answer(connection, browser, directory)


def _answer(connection: socket.socket, browser: Browser | None, directory: Path) -> Browser | None:
    """Answer one request; return the browser that runs now."""
    reply: Mapping[str, Any]
    with connection.makefile("rb") as received:
        request = json.loads(received.readline(MAX_REQUEST_BYTES))
    try:
        if browser is None or browser.closed:
            browser = Browser(directory)
        reply = browser_actions.perform(browser, request)
    except BrowserError as error:
        dialogs = browser.take_dialogs() if browser is not None else []
        reply = {"error": str(error), **({"dialogs": dialogs} if dialogs else {})}
    connection.sendall(json.dumps(reply).encode() + b"\n")
    return browser


def main() -> None:
    """Serve below HOME; ends at once, with the reason, where there is no browser."""
    find_program()
    serve(Path(os.environ["HOME"], ".dovecote/browser"))
