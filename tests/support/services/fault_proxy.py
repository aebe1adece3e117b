"""A TCP proxy on loopback that breaks connections in the ways networks do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 64 * 1024


class FaultProxy:
    """Forwards bytes between clients and a target until a fault is injected."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.accepted = 0
        self.delay = 0.0
        """Seconds every chunk waits, either way."""
        self.refusing = False
        """New connections are reset at once."""
        self._target = (host, port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._corrupting = 0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._ended: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_connections(self) -> int:
        """How many connections pass through."""
        return len(self._pairs)

    def black_hole(self) -> None:
        """Keep connections and let nothing through, either way."""
        self._flowing.clear()

    def heal(self) -> None:
        """Let everything through again, what was held back first."""
        self.delay = 0.0
        self.refusing = False
        self._flowing.set()

    def corrupt(self, chunks: int = 1) -> None:
        """Change a byte in each of the next chunks towards the client."""
        self._corrupting = chunks

    def drop(self) -> None:
        """Close all connections in order (FIN)."""
        for pair in tuple(self._pairs):
            for writer in pair:
                writer.close()

    def reset(self) -> None:
        """Cut all connections without a word (RST)."""
        for pair in tuple(self._pairs):
            for writer in pair:
                _reset(writer)

    def half_close(self) -> None:
        """End the stream to all clients, and go on listening to them."""
        for client, _ in tuple(self._pairs):
            if client.can_write_eof():
                client.write_eof()
                self._ended.add(client)

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut everything."""
        assert self._server is not None
        self._server.close()
        self.heal()
        self.reset()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            _reset(client)
            return
        self.accepted += 1
        try:
            answers, target = await self._connect()
        except OSError:
            _reset(client)
            return
        pair = (client, target)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(reader, target, towards_client=False),
                self._pump(answers, client, towards_client=True),
            )
        finally:
            self._pairs.discard(pair)
            self._ended.discard(client)
            for writer in pair:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target
        if host.startswith("/"):
            return await asyncio.open_unix_connection(host)
        return await asyncio.open_connection(host, port)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, towards_client: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._flowing.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if towards_client and self._corrupting:
                    self._corrupting -= 1
                    chunk = bytes([chunk[0] ^ 0x5A]) + chunk[1:]
                if writer not in self._ended:
                    writer.write(chunk)
                    await writer.drain()
            await self._flowing.wait()
        if not writer.is_closing():
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def fault_proxy(port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[FaultProxy]:
    """Run a proxy in front of a port, or of the unix socket at the path `host`, until the block ends."""
    proxy = FaultProxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
