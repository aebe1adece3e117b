"""The fault proxy breaks connections as documented; otherwise tests that rely on it prove nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fault_proxy import FaultProxy, fault_proxy


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """Run a proxy before an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1000):
            writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with fault_proxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


class EchoClient:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo(self, text: bytes) -> bytes:
        """Send and return what comes back."""
        self.writer.write(text)
        async with asyncio.timeout(5):
            return await self.reader.read(1000)


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[EchoClient]:
    """Connect through the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    client = EchoClient(reader, writer)
    assert await client.echo(b"hello") == b"hello"
    yield client
    writer.close()


async def test_a_black_hole_holds_everything_back_until_it_heals(
    proxy: FaultProxy, client: EchoClient
) -> None:
    """Nothing comes through, the connection stays, and healing delivers what was held."""
    proxy.black_hole()
    waiting = asyncio.create_task(client.echo(b"held"))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    proxy.heal()
    assert await waiting == b"held"


async def test_a_drop_is_an_orderly_end(proxy: FaultProxy, client: EchoClient) -> None:
    """A dropped client reads the end of the stream."""
    proxy.drop()
    assert await client.reader.read() == b""


async def test_a_reset_is_an_error(proxy: FaultProxy, client: EchoClient) -> None:
    """A cut client meets a reset."""
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


async def test_a_half_closed_connection_still_takes(proxy: FaultProxy, client: EchoClient) -> None:
    """After a half close the client reads the end and may still write."""
    proxy.half_close()
    assert await client.reader.read() == b""
    client.writer.write(b"still heard")
    await client.writer.drain()


async def test_corruption_changes_bytes(proxy: FaultProxy, client: EchoClient) -> None:
    """The next chunk towards the client differs from what was sent, the one after does not."""
    proxy.corrupt()
    assert await client.echo(b"abc") != b"abc"
    assert await client.echo(b"abc") == b"abc"


async def test_delay_passes_everything_on(proxy: FaultProxy, client: EchoClient) -> None:
    """Delayed bytes arrive whole."""
    proxy.delay = 0.05
    assert await client.echo(b"late") == b"late"


async def test_refused_connections_are_reset(proxy: FaultProxy) -> None:
    """While refusing, a new connection ends at once."""
    proxy.refusing = True
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
