"""Listen on loopback in a sandbox, carry each connection to the gateway's proxy, and become the command.

    python3 -I -S forward_egress.py SOCKET PORT -- COMMAND…
    python3 -I -S forward_egress.py SOCKET PORT                  without a command: only forward

The sandbox has no other way out than SOCKET. The proxy decides what is reached; this program decides nothing.
It runs in the sandbox, imports the standard library only, and ends with the sandbox's last command.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from contextlib import suppress

CHUNK_BYTES = 65536
MAX_PAIRS = 32
BACKLOG = 64
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"The gateway's proxy does not answer now: try again.\n"
)


def main() -> None:
    """Start the forwarder beside this process, and execute the command."""
    path, port, *rest = sys.argv[1:]
    if not rest:
        SocketForwarder(_listen(port), path).run()
    command = rest[1:]
    try:
        listener = _listen(port)
    except OSError:  # another command of this sandbox has started one
        os.execvp(command[0], command)  # noqa: S606 - the command of the sandbox
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _detach(listener.fileno())
            SocketForwarder(listener, path).run()
        os._exit(0)
    os.waitpid(child, 0)
    listener.close()
    os.execvp(command[0], command)  # noqa: S606 - the command of the sandbox


def _listen(port: str) -> socket.socket:
    return socket.create_server(("127.0.0.1", int(port)), backlog=BACKLOG)


def _detach(kept: int) -> None:
    """Leave the command's session, streams and directory; only the command ends this process."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, kept + 1024)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


class SocketEnd:
    """One of the two sockets of a connection, and what waits to be written to it."""

    __slots__ = ("ended", "peer", "pending", "socket")

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        self.socket = connection
        self.peer = self
        self.pending = b""
        self.ended = False


class SocketForwarder:
    """Carries connections in both directions, with one thread and little memory."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._pairs = 0
        listener.settimeout(0)
        self._selector.register(listener, _READ)

    def run(self) -> None:
        """Forward until this process is killed."""
        while True:
            for key, events in self._selector.select():
                if key.data is None:
                    with suppress(OSError):
                        self._accept()
                    continue
                end: SocketEnd = key.data
                try:
                    if events & _WRITE:
                        self._write(end)
                    if events & _READ:
                        self._read(end)
                    self._watch(end)
                    self._watch(end.peer)
                except (OSError, ValueError, KeyError):
                    self._close(end)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        proxy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            proxy.settimeout(0)
            proxy.connect(self._path)
        except OSError:
            proxy.close()
            with connection:
                connection.settimeout(1)
                connection.sendall(UNAVAILABLE)
            return
        inside, outside = SocketEnd(connection), SocketEnd(proxy)
        inside.peer, outside.peer = outside, inside
        for end in (inside, outside):
            self._selector.register(end.socket, _READ, end)
        self._pairs += 1
        if self._pairs >= MAX_PAIRS:
            self._selector.unregister(self._listener)

    def _read(self, end: SocketEnd) -> None:
        received = end.socket.recv(CHUNK_BYTES)
        if received:
            end.peer.pending += received
            self._write(end.peer)
        else:
            end.ended = True
            self._end_if_written(end.peer)

    def _write(self, end: SocketEnd) -> None:
        if end.pending:
            with suppress(BlockingIOError):
                end.pending = end.pending[end.socket.send(end.pending) :]
        self._end_if_written(end)

    @staticmethod
    def _end_if_written(end: SocketEnd) -> None:
        if end.peer.ended and not end.pending:
            with suppress(OSError):
                end.socket.shutdown(socket.SHUT_WR)

    def _watch(self, end: SocketEnd) -> None:
        """Wait for what this end can do next; close both when there is nothing left."""
        if end.ended and end.peer.ended and not end.pending and not end.peer.pending:
            self._close(end)
            return
        wanted = 0 if end.ended or end.peer.pending else _READ
        if end.pending:
            wanted |= _WRITE
        is_known = end.socket.fileno() in self._selector.get_map()
        if wanted and is_known:
            self._selector.modify(end.socket, wanted, end)
        elif wanted:
            self._selector.register(end.socket, wanted, end)
        elif is_known:
            self._selector.unregister(end.socket)

    def _close(self, end: SocketEnd) -> None:
        if end.socket.fileno() < 0:
            return
        for one in (end, end.peer):
            with suppress(KeyError, ValueError):
                self._selector.unregister(one.socket)
            one.socket.close()
        self._pairs -= 1
        if self._listener.fileno() not in self._selector.get_map():
            self._selector.register(self._listener, _READ)


if __name__ == "__main__":
    main()
