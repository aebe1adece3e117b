"""A webhook receiver on loopback that misbehaves as configured, and counts what it gets."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class WebhookReceiver:
    """Answers each request by the next behaviour of its script, then by 200 for ever."""

    script: deque[Behaviour] = field(default_factory=deque)
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    scheme: str = "http"
    request_received: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                while not writer.is_closing():
                    await self._exchange(reader, writer)
        finally:
            writer.transport.abort()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(ReceivedRequest(line=head[0], headers=headers, body=body))
        self.request_received.set()
        behaviour = self.script.popleft() if self.script else respond(200)
        await behaviour(writer)


@asynccontextmanager
async def webhook_receiver(
    *script: Behaviour, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebhookReceiver]:
    """Listen on loopback until left; connections still open are cut then."""
    receiver = WebhookReceiver(deque(script), scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver._serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def respond(status: int, *, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer properly; header names are written with underscores."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    raw = ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return behave


async def never_respond(writer: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    del writer
    await asyncio.Event().wait()


async def reset_connection(writer: asyncio.StreamWriter) -> None:
    """Cut the connection instead of answering."""
    writer.transport.abort()


def truncate_body(status: int) -> Behaviour:
    """Send the head and half of the promised body, then cut the connection."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Whatever\r\nContent-Length: 100\r\n\r\n".encode() + b"x" * 50)
        await writer.drain()
        writer.transport.abort()

    return behave


def stall_body(status: int) -> Behaviour:
    """Send the head and one byte of the body, and then nothing."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Whatever\r\nContent-Length: 100\r\n\r\nx".encode())
        await writer.drain()
        await asyncio.Event().wait()

    return behave


def stream_body(receiver_of: list[WebhookReceiver], status: int, size: int) -> Behaviour:
    """Send a body of `size` bytes, counting in `written` how much of it was accepted."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Whatever\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // 65_536):
            writer.write(b"x" * 65_536)
            await writer.drain()
            receiver_of[0].written += 65_536

    return behave
