"""What the command line says of a gateway that accepts connections and does not answer."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from gateway.cli.client import GatewayClient
from gateway.cli.errors import ExitCode, GatewaySilent


async def test_a_gateway_that_hangs_is_not_one_to_start() -> None:
    """The error names the address and where to look, with the exit code of an unreachable gateway."""
    ended = asyncio.Event()

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    timeout = aiohttp.ClientTimeout(total=0.3, connect=30)
    async with server, aiohttp.ClientSession(timeout=timeout) as session:
        with pytest.raises(GatewaySilent) as silent:
            await GatewayClient(url=url, session=session).get("turns")
        ended.set()
    assert f"{url} accepts connections and does not answer in time" in str(silent.value)
    assert "dovecote logs" in str(silent.value)
    assert silent.value.code is ExitCode.UNREACHABLE
