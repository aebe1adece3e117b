"""Carry connections of a sandbox to the gateway's proxy over one pair of byte streams, such as an exec's.

    python3 -I -S -c BOOT PROGRAM-BYTES BUNDLE-BYTES BUNDLE-PATH PORT

In the sandbox it listens on loopback at PORT and sends frames on stdout. The gateway uses the same class to
receive them. Both sides bound what the other may send: a frame has a length of at most CHUNK_BYTES, and a
connection at most WINDOW_BYTES that were not yet written at its end. It runs with any python3 (3.9 or newer),
imports the standard library only, and ends when the gateway's stream ends or is silent for SILENT_SECONDS.

A frame is a letter, the number of a connection and a length (4 bytes each), and so many bytes:

    R  the sandbox listens                        P  the gateway lives
    O  a connection begins                        D  bytes of a connection
    E  no more bytes follow in this direction     X  the connection is broken
    C  so many bytes more may be sent (4 bytes)
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

BOOT = (
    "import os, sys\nleft, text = int(sys.argv[1]), b''\n"
    "while len(text) < left:\n    text += os.read(0, left - len(text)) or sys.exit(1)\n"
    "exec(compile(text, 'egress_tunnel', 'exec'))"
)
"""The program on the command line: it reads this file from stdin and executes it."""

READY, PING, OPEN, DATA, END, CLOSE, CREDIT = b"R", b"P", b"O", b"D", b"E", b"X", b"C"
HEADER, AMOUNT = struct.Struct("!cII"), struct.Struct("!I")
CHUNK_BYTES, WINDOW_BYTES = 16 * 1024, 256 * 1024
MAX_CONNECTIONS = 64
PING_SECONDS, SILENT_SECONDS = 10.0, 45.0
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"The gateway's proxy does not answer now: try again.\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Send = Callable[[bytes], Awaitable[None]]
Accept = Callable[[], Awaitable[Streams]]


class TunnelViolation(Exception):
    """The other side has sent what it may not send."""


class TunnelConnection:
    """One connection: what the other side sent, and how much may be sent to it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.has_ended = False
        self.changed = asyncio.Event()
        self.credit = WINDOW_BYTES
        self.may_send = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def add(self, content: bytes) -> None:
        """Take bytes of the other side; raises TunnelViolation if they exceed the window."""
        if self.has_ended or len(self.received) + len(content) > WINDOW_BYTES:
            raise TunnelViolation("a connection has sent more than its window")
        self.received += content
        self.changed.set()

    def end(self) -> None:
        """Note that the other side sends no more."""
        self.has_ended = True
        self.changed.set()


class Multiplexer:
    """Carries connections over one pair of streams; `accept` connects those that the other side begins."""

    def __init__(self, send: Send, accept: Accept | None = None) -> None:
        self._send_bytes = send
        self._accept = accept
        self._lock = asyncio.Lock()
        self._unparsed = bytearray()
        self._connections: dict[int, TunnelConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._is_closing = False
        self.is_ready = asyncio.Event()
        self.received_at = time.monotonic()

    @property
    def is_full(self) -> bool:
        """Whether no further connection may begin."""
        return len(self._tasks) >= MAX_CONNECTIONS

    async def send(self, kind: bytes, number: int = 0, content: bytes = b"") -> None:
        """Send one frame."""
        async with self._lock:
            await self._send_bytes(HEADER.pack(kind, number, len(content)) + content)

    def begin(self, streams: Streams) -> None:
        """Carry an accepted connection until its end."""
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        self._start(self._last_number, streams)

    def feed(self, data: bytes) -> None:
        """Take bytes of the other side; raises TunnelViolation."""
        self.received_at = time.monotonic()
        self._unparsed += data
        while len(self._unparsed) >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._unparsed)
            if length > CHUNK_BYTES:
                raise TunnelViolation("a frame is too long")
            if len(self._unparsed) < HEADER.size + length:
                return
            content = bytes(self._unparsed[HEADER.size : HEADER.size + length])
            del self._unparsed[: HEADER.size + length]
            self._dispatch(kind, number, content)

    async def close(self) -> None:
        """End every connection; nothing is sent any more."""
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _dispatch(self, kind: bytes, number: int, content: bytes) -> None:
        found = self._connections.get(number)
        if kind == READY:
            self.is_ready.set()
        elif kind == OPEN:
            self._begin_theirs(number, is_known=found is not None)
        elif found is None or kind == PING:
            return  # of a connection that has just ended here
        elif kind == DATA:
            found.add(content)
        elif kind == END:
            found.end()
        elif kind == CREDIT and len(content) == AMOUNT.size:
            found.credit += AMOUNT.unpack(content)[0]
            found.may_send.set()
        elif kind == CLOSE and found.task is not None:
            found.task.cancel()
        else:
            raise TunnelViolation("a frame of an unknown kind")

    def _begin_theirs(self, number: int, *, is_known: bool) -> None:
        if self._accept is None or is_known or self.is_full:
            raise TunnelViolation("a connection that may not begin")
        self._start(number, None)

    def _start(self, number: int, streams: Streams | None) -> None:
        connection = self._connections[number] = TunnelConnection()
        task = connection.task = asyncio.ensure_future(self._run(number, connection, streams))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int, connection: TunnelConnection, streams: Streams | None) -> None:
        """Carry a connection to its end; without streams the other side has begun it."""
        is_complete = False
        try:
            if streams is None:
                streams = await self._connect(number)
            else:
                await self.send(OPEN, number)
            if streams is not None:
                await self._forward(number, connection, streams)
            is_complete = True
        except OSError:
            pass  # the connection is broken at one of its ends
        finally:
            self._connections.pop(number, None)
            if streams is not None:
                streams[1].close()
            if not is_complete and not self._is_closing:
                with suppress(OSError):
                    await self.send(CLOSE, number)

    async def _connect(self, number: int) -> Streams | None:
        """Connect what the other side has begun; it may have sent bytes already."""
        assert self._accept is not None, "only the gateway connects"
        try:
            return await self._accept()
        except OSError:
            await self.send(DATA, number, UNAVAILABLE)
            await self.send(END, number)
            return None

    async def _forward(self, number: int, connection: TunnelConnection, streams: Streams) -> None:
        reader, writer = streams
        halves = [
            asyncio.ensure_future(self._send_all(number, connection, reader)),
            asyncio.ensure_future(self._write_all(number, connection, writer)),
        ]
        try:
            await asyncio.gather(*halves)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _send_all(
        self, number: int, connection: TunnelConnection, reader: asyncio.StreamReader
    ) -> None:
        """Send what the local end says, as far as the other side has room."""
        while True:
            while connection.credit <= 0:
                connection.may_send.clear()
                await connection.may_send.wait()
            content = await reader.read(min(CHUNK_BYTES, connection.credit))
            if not content:
                await self.send(END, number)
                return
            connection.credit -= len(content)
            await self.send(DATA, number, content)

    async def _write_all(
        self, number: int, connection: TunnelConnection, writer: asyncio.StreamWriter
    ) -> None:
        """Write what the other side says, and tell it when there is room again."""
        while connection.received or not connection.has_ended:
            if not connection.received:
                connection.changed.clear()
                await connection.changed.wait()
                continue
            content = bytes(connection.received)
            writer.write(content)
            await writer.drain()
            del connection.received[: len(content)]
            await self.send(CREDIT, number, AMOUNT.pack(len(content)))
        writer.write_eof()


def _read_exactly(length: int) -> bytes:
    content = b""
    while len(content) < length:
        piece = os.read(0, length - len(content))
        if not piece:
            sys.exit(1)
        content += piece
    return content


def _write_bundle(path: str, content: bytes) -> None:
    """Put the certificates where the programs of the sandbox look for them."""
    target = Path(path)
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.chmod(0o644)
    fresh.replace(target)


def _write_out(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


async def serve(port: int) -> None:
    """Listen until the gateway's stream ends, or is silent for too long."""
    loop = asyncio.get_running_loop()

    async def send(content: bytes) -> None:
        await loop.run_in_executor(None, _write_out, content)

    multiplexer = Multiplexer(send)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if multiplexer.is_full:
            writer.write(UNAVAILABLE)
            writer.close()
            return
        multiplexer.begin((reader, writer))

    def watch() -> None:
        if time.monotonic() - multiplexer.received_at > SILENT_SECONDS:
            os._exit(0)
        loop.call_later(PING_SECONDS, watch)

    await asyncio.start_server(accept, "127.0.0.1", port, reuse_port=True)
    watch()
    await multiplexer.send(READY)
    while True:
        received = await loop.run_in_executor(None, os.read, 0, 65536)
        if not received:
            os._exit(0)
        multiplexer.feed(received)


def main() -> None:
    """Run in the sandbox."""
    bundle_bytes, path, port = sys.argv[2:]
    _write_bundle(path, _read_exactly(int(bundle_bytes)))
    try:
        asyncio.run(serve(int(port)))
    finally:
        os._exit(1)  # a thread may still wait for the gateway


if __name__ == "__main__":
    main()
