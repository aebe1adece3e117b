"""Connections over one pair of streams: bytes arrive, bounds hold, and violations are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox.exec.scripts.egress_tunnel import (
    CHUNK_BYTES,
    CLOSE,
    CREDIT,
    DATA,
    END,
    HEADER,
    MAX_CONNECTIONS,
    OPEN,
    PING,
    WINDOW_BYTES,
    Multiplexer,
    Streams,
    TunnelViolation,
)


class TunnelPair:
    """The sandbox's and the gateway's multiplexer, each fed with what the other sends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.carried = 0
        self.sandbox = Multiplexer(self._to_gateway)
        self.gateway = Multiplexer(self._to_sandbox, self._connect)

    async def _to_gateway(self, content: bytes) -> None:
        self.carried += len(content) if content[:1] == DATA else 0
        self.gateway.feed(content)

    async def _to_sandbox(self, content: bytes) -> None:
        self.sandbox.feed(content)

    async def _connect(self) -> Streams:
        return await asyncio.open_unix_connection(str(self.directory / "proxy"))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen as the program in the sandbox does; yield the path of the socket."""
        path = str(self.directory / "inside")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.sandbox.begin((reader, writer))

        async with await asyncio.start_unix_server(accept, path):
            yield path
            await self.sandbox.close()
            await self.gateway.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with everything that was sent, once no more comes."""
    writer.write(await reader.read())
    await writer.drain()
    writer.close()


async def ask(path: str, content: bytes) -> bytes:
    """Send everything, end, and return the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(content)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_connections_carry_more_than_their_window(tmp_path: Path) -> None:
    """Several connections at once carry a megabyte each way, and each ends after its own last byte."""
    pair = TunnelPair(tmp_path)
    contents = [bytes([place]) * (4 * WINDOW_BYTES + place) for place in range(5)]
    async with (
        await asyncio.start_unix_server(echo, str(tmp_path / "proxy"), limit=CHUNK_BYTES),
        pair.listening() as path,
    ):
        assert await asyncio.gather(*(ask(path, content) for content in contents)) == contents


async def test_a_connection_waits_for_an_end_that_does_not_read(tmp_path: Path) -> None:
    """No more than a window is on its way to an end that takes nothing; another connection is not held up."""
    pair, held = TunnelPair(tmp_path), asyncio.Event()
    stuck = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"s":
            stuck.set()
            await held.wait()
            writer.close()
            return
        await echo(reader, writer)

    async with (
        await asyncio.start_unix_server(answer, str(tmp_path / "proxy"), limit=CHUNK_BYTES),
        pair.listening() as path,
    ):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"s" * (32 * WINDOW_BYTES))
        await stuck.wait()
        assert await ask(path, b"-quick") == b"quick"
        sent = pair.carried
        assert await ask(path, b"-again") == b"again"
        assert pair.carried - sent < 2 * CHUNK_BYTES + WINDOW_BYTES
        held.set()
        writer.transport.abort()
        assert await reader.read() == b""


async def test_without_a_proxy_the_program_gets_an_error(tmp_path: Path) -> None:
    """A connection to a gateway that listens nowhere is answered in words."""
    async with TunnelPair(tmp_path).listening() as path:
        assert b"try again" in await ask(path, b"GET / HTTP/1.1\r\n\r\n")


def frame(kind: bytes, number: int = 1, content: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return HEADER.pack(kind, number, len(content)) + content


FULL = b"".join(frame(DATA, 1, b"x" * CHUNK_BYTES) for _ in range(WINDOW_BYTES // CHUNK_BYTES))
VIOLATIONS = {
    "a long frame": HEADER.pack(DATA, 1, CHUNK_BYTES + 1),
    "an unknown kind": frame(OPEN) + frame(b"?"),
    "a number in use": frame(OPEN) + frame(OPEN),
    "too many connections": b"".join(frame(OPEN, number) for number in range(MAX_CONNECTIONS + 1)),
    "more than the window": frame(OPEN) + FULL + frame(DATA, 1, b"x"),
    "bytes after the end": frame(OPEN) + frame(END) + frame(DATA, 1, b"x"),
    "half a credit": frame(OPEN) + frame(CREDIT, 1, b"\1"),
}


@pytest.mark.parametrize("sent", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_the_gateway_finds_violations(sent: bytes) -> None:
    """The program that controls the stream in the sandbox cannot exceed the gateway's bounds."""

    async def discard(_content: bytes) -> None:
        await asyncio.Event().wait()

    async def never() -> Streams:
        await asyncio.Event().wait()
        raise AssertionError

    gateway = Multiplexer(discard, never)
    with pytest.raises(TunnelViolation):
        gateway.feed(sent)
    await gateway.close()


async def test_frames_of_unknown_connections_change_nothing() -> None:
    """Frames may arrive after the end of their connection, in pieces of any size."""
    sent: list[bytes] = []

    async def keep(content: bytes) -> None:
        sent.append(content)

    async def refuse() -> Streams:
        raise AssertionError("nothing is opened")

    gateway = Multiplexer(keep, refuse)
    frames = [frame(PING, 0), frame(DATA, 7, b"late"), frame(END, 7), frame(CLOSE, 7)]
    for place in b"".join(frames):
        gateway.feed(bytes([place]))
    assert sent == []


async def test_a_sandbox_accepts_no_connection_of_the_gateway() -> None:
    """Only the sandbox begins connections."""

    async def discard(_content: bytes) -> None:
        return

    with pytest.raises(TunnelViolation):
        Multiplexer(discard).feed(frame(OPEN))
