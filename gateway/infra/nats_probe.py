"""Ask a nats-server whether it stores messages, from a thread and over a connection of its own.

The event loop of this process may be late, and then its unanswered requests say nothing about the server.
A thread waits in the kernel, so an answer that has arrived is found however late the thread continues.
"""

from __future__ import annotations

import json
import socket
from contextlib import closing
from typing import BinaryIO

PROBE_SUBJECT = "lease.probe.server"
"""A subject of the event stream that holds one message for a second."""
_HEADERS = b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Rollup: sub\r\n\r\n"
_INBOX = b"_INBOX.probe"


def stores_messages(port: int, token: str, *, timeout: float) -> bool:
    """Return whether the server answers a publish to its streams, even by refusing it."""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=timeout)) as connection:
            connection.settimeout(timeout)
            return _exchange(connection, token)
    except OSError:
        return False


def _exchange(connection: socket.socket, token: str) -> bool:
    options = {"auth_token": token, "verbose": False, "pedantic": False, "headers": True, "protocol": 1}
    connection.sendall(
        b"CONNECT %s\r\nSUB %s 1\r\n" % (json.dumps(options).encode(), _INBOX)
        + b"HPUB %s %s %d %d\r\n%s\r\n"
        % (PROBE_SUBJECT.encode(), _INBOX, len(_HEADERS), len(_HEADERS), _HEADERS)
    )
    with connection.makefile("rb") as lines:
        return _is_answered(lines)


def _is_answered(lines: BinaryIO) -> bool:
    """Return whether a message for the inbox arrives; an error of the protocol is an answer too."""
    return any(line.startswith((b"MSG ", b"HMSG ", b"-ERR")) for line in lines)
