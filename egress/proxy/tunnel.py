"""Carry bytes between a sandbox and a host within the sandbox's budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from egress.proxy.client_hello import UNRECOGNIZED_NAME, ClientHelloReader, NotClientHello

CHUNK_BYTES = 64 * 1024
HELLO_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressBudget:
    """What one sandbox may use of the proxy."""

    connections: int = 32
    """Connections that are open at once."""
    backlog: int = 32
    """Connections that the kernel keeps until one of those is closed."""
    burst_bytes: int = 64 * 1024 * 1024
    bytes_per_second: int = 16 * 1024 * 1024
    """Bytes in both directions; more than the burst waits."""
    idle_seconds: float = 300.0
    """Seconds without a byte after which a connection is closed."""
    connection_seconds: float = 3600.0
    """Seconds after which a connection is closed."""


class ByteAllowance:
    """Bytes that a sandbox may carry: spent at once, refilled by time, and awaited when overdrawn."""

    def __init__(self, budget: EgressBudget, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._left = float(budget.burst_bytes)
        self._counted_at = clock()
        self.carried = 0

    async def spend(self, amount: int) -> None:
        """Count bytes that were carried, and wait as long as the sandbox is above its rate."""
        now = self._clock()
        refilled = (now - self._counted_at) * self._budget.bytes_per_second
        self._left = min(self._budget.burst_bytes, self._left + refilled) - amount
        self._counted_at = now
        self.carried += amount
        if self._left < 0:
            await asyncio.sleep(-self._left / self._budget.bytes_per_second)


class ServerNameMismatch(Exception):
    """The TLS connection in a tunnel is for another host than the tunnel."""


async def read_client_hello(reader: asyncio.StreamReader, host: str) -> bytes:
    """Return the first bytes of a TLS connection to `host`; raises ServerNameMismatch, NotClientHello."""
    hello = ClientHelloReader()
    async with asyncio.timeout(HELLO_SECONDS):
        while True:
            received = await reader.read(CHUNK_BYTES)
            if not received:
                raise NotClientHello("the connection ended before the ClientHello")
            if hello.feed(received):
                break
    name = hello.server_name()
    if name != host:
        raise ServerNameMismatch(f"the tunnel is for {host}, and the TLS connection for {name or 'no name'}")
    return hello.received


def refuse_tls(writer: asyncio.StreamWriter) -> None:
    """Answer a TLS connection with the alert `unrecognized_name`."""
    with suppress(OSError, RuntimeError):
        writer.write(UNRECOGNIZED_NAME)


async def copy_both_ways(
    inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    *,
    budget: EgressBudget,
    allowance: ByteAllowance,
) -> None:
    """Carry bytes until both directions have ended, or until nothing was carried for too long."""
    last = [time.monotonic()]

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            last[0] = time.monotonic()
            writer.write(chunk)
            await writer.drain()
            await allowance.spend(len(chunk))
        if writer.can_write_eof():
            writer.write_eof()

    async def watch(directions: list[asyncio.Task[None]]) -> None:
        left = budget.idle_seconds
        while left > 0:
            await asyncio.sleep(left)
            left = last[0] + budget.idle_seconds - time.monotonic()
        for direction in directions:
            direction.cancel()

    directions = [
        asyncio.create_task(copy(inside[0], outside[1])),
        asyncio.create_task(copy(outside[0], inside[1])),
    ]
    watcher = asyncio.create_task(watch(directions))
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        watcher.cancel()
        for direction in directions:
            direction.cancel()
        await asyncio.gather(watcher, *directions, return_exceptions=True)
