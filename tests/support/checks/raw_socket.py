"""A WebSocket client that writes its frames by hand (RFC 6455), right or wrong."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


class RawSocket:
    """An upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def frame(
        self,
        opcode: int,
        body: bytes,
        *,
        final: bool = True,
        reserved: int = 0,
        masked: bool = True,
        claims: int | None = None,
    ) -> None:
        """Write one frame; `claims` is a length that is not its own."""
        head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
        bit, length = 0x80 if masked else 0, len(body) if claims is None else claims
        if length < 126:
            head += bytes([bit | length])
        elif length < 2**16:
            head += bytes([bit | 126]) + struct.pack("!H", length)
        else:
            head += bytes([bit | 127]) + struct.pack("!Q", length)
        mask = os.urandom(4) if masked else b""
        sent = bytes(byte ^ mask[place % 4] for place, byte in enumerate(body)) if masked else body
        self.writer.write(head + mask + sent)

    def send_frame(self, frame: object) -> None:
        """Write a JSON text frame."""
        self.frame(TEXT, json.dumps(frame).encode())

    async def receive(self) -> tuple[int, bytes]:
        """Return the next frame's opcode and body."""
        head = await self.reader.readexactly(2)
        size = head[1] & 0x7F
        if size == 126:
            size = struct.unpack("!H", await self.reader.readexactly(2))[0]
        elif size == 127:
            size = struct.unpack("!Q", await self.reader.readexactly(8))[0]
        return head[0] & 0x0F, await self.reader.readexactly(size)

    async def wait_closed(self) -> tuple[int, str]:
        """Read up to the close frame, and return its code and reason."""
        async with asyncio.timeout(10):
            while True:
                opcode, body = await self.receive()
                if opcode == CLOSE:
                    return struct.unpack("!H", body[:2])[0], body[2:].decode()


@asynccontextmanager
async def raw_socket(url: str, key: str, *, limit: int = 2**16) -> AsyncIterator[RawSocket]:
    """Upgrade a connection to `url`/ws; what is not read beyond `limit` stays in the network."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=limit)
    lines = (
        "GET /ws HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Authorization: Bearer {key}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
