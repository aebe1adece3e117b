"""The limits of the egress sockets: connections, bytes and time of a sandbox, and places of accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from egress.proxy.tunnel import ByteAllowance, EgressBudget
from public_hosts import PUBLIC, PublicHosts
from sandbox.model import Network, SandboxSpec
from sandbox.port import EGRESS_SOCKET

NAME = "files.example.org"
ASK = f"GET http://{NAME}/ HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def spec(account: str = "acc_1") -> SandboxSpec:
    """Return a sandbox that may reach one host."""
    return SandboxSpec(
        label="box",
        namespace="space",
        account=account,
        network=Network.RESTRICTED,
        allow_domains=(NAME,),
    )


@pytest.fixture
def hosts(tmp_path: Path) -> PublicHosts:
    """Return an internet with one name."""
    found = PublicHosts(directory=tmp_path)
    found.add(NAME)
    return found


@asynccontextmanager
async def directories(tmp_path: Path, count: int) -> AsyncIterator[list[Path]]:
    """Make the directories of some sandboxes."""
    found = [tmp_path / f"box{number}" for number in range(count)]
    for one in found:
        one.mkdir()
    yield found


async def connect(directory: Path) -> Streams:
    """Connect as the forwarder of a sandbox does."""
    return await asyncio.open_unix_connection(str(directory / EGRESS_SOCKET))


async def ask(directory: Path) -> bytes:
    """Return the answer to one request."""
    reader, writer = await connect(directory)
    writer.write(ASK)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def greet(request: web.BaseRequest) -> web.Response:
    """Answer a request."""
    return web.Response(text="hello")


async def test_a_sandbox_holds_so_many_connections(tmp_path: Path, hosts: PublicHosts) -> None:
    """Connections above the limit wait until one is closed; another sandbox is served at the same time."""
    budget = EgressBudget(connections=2)
    async with (
        directories(tmp_path, 2) as (mine, other),
        hosts.serve(greet),
        hosts.sockets(budget=budget) as sockets,
    ):
        sockets.open(mine, spec())
        sockets.open(other, spec("acc_2"))
        idle = [await connect(mine) for _ in range(2)]
        waiting = asyncio.create_task(ask(mine))
        assert (await ask(other)).endswith(b"hello")
        assert not waiting.done()
        for _reader, writer in idle:
            writer.close()
        assert (await waiting).endswith(b"hello")


async def test_an_account_does_not_take_every_place(tmp_path: Path, hosts: PublicHosts) -> None:
    """While one account holds all places that it may hold, another account is served."""
    async with (
        directories(tmp_path, 2) as (mine, other),
        hosts.serve(greet),
        hosts.sockets(places=FairGate(PoolSize(places=4, share=0.5))) as sockets,
    ):
        sockets.open(mine, spec())
        sockets.open(other, spec("acc_2"))
        idle = [await connect(mine) for _ in range(8)]
        assert (await ask(other)).endswith(b"hello")
        for _reader, writer in idle:
            writer.close()
        assert (await ask(mine)).endswith(b"hello")


@pytest.mark.parametrize("limit", ["connection_seconds", "idle_seconds"])
async def test_a_connection_ends_in_time(tmp_path: Path, hosts: PublicHosts, limit: str) -> None:
    """A tunnel without bytes, and a connection that lasts too long, are closed."""
    budget = EgressBudget(**{limit: 0.2})  # type: ignore[arg-type]  # one of the two times
    async with (
        directories(tmp_path, 1) as (mine,),
        hosts.serve(greet, port=443, tls_name=NAME),
        hosts.sockets(budget=budget) as sockets,
    ):
        sockets.open(mine, spec_of_network())
        reader, writer = await connect(mine)
        is_idle = limit == "idle_seconds"
        if is_idle:
            writer.write(b"CONNECT 93.184.215.14:443 HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200" if is_idle else b"")
        writer.close()


def spec_of_network() -> SandboxSpec:
    """Return a sandbox that may reach a network."""
    return SandboxSpec(
        label="box",
        namespace="space",
        account="acc_1",
        network=Network.RESTRICTED,
        allow_cidrs=("93.184.0.0/16",),
    )


def slow_answer(go_on: asyncio.Event) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """Return a handler whose answer ends once it may go on."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await go_on.wait()
        await response.write(b"-done")
        return response

    return answer


async def test_a_change_of_the_lists_cuts_what_they_no_longer_allow(
    tmp_path: Path, hosts: PublicHosts
) -> None:
    """A longer list cuts nothing; a shorter one leaves only tunnels to what is still listed."""
    go_on = asyncio.Event()
    wide = replace(spec_of_network(), allow_domains=(NAME, "other.example.org"))
    async with (
        directories(tmp_path, 1) as (mine,),
        hosts.serve(slow_answer(go_on)),
        hosts.sockets() as sockets,
    ):
        sockets.open(mine, replace(wide, allow_domains=(NAME,)))
        tunnels = [await connect(mine) for _ in range(2)]
        plain = await connect(mine)
        for _reader, writer in tunnels:
            writer.write(f"CONNECT {PUBLIC}:80 HTTP/1.1\r\n\r\n".encode())
        plain[1].write(ASK)
        async with asyncio.timeout(60):
            for reader, writer in tunnels:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ASK)
            for reader, _writer in (*tunnels, plain):
                await reader.readuntil(b"begun")
            sockets.open(mine, wide)
            sockets.open(mine, replace(wide, allow_domains=("other.example.org",)))
            assert b"done" not in await plain[0].read()
            go_on.set()
            assert b"-done" in await tunnels[0][0].read()
            sockets.open(mine, replace(wide, allow_cidrs=("93.185.0.0/16",)))
            await tunnels[1][0].read()
        for _reader, writer in (*tunnels, plain):
            writer.close()


async def test_a_shorter_list_cuts_no_plain_request_to_what_is_still_listed(
    tmp_path: Path, hosts: PublicHosts
) -> None:
    """A download goes on, and a later request on the same connection is checked by the present list."""
    go_on = asyncio.Event()
    hosts.add("other.example.org")
    wide = replace(spec(), allow_domains=(NAME, "other.example.org"))
    async with (
        directories(tmp_path, 1) as (mine,),
        hosts.serve(slow_answer(go_on)),
        hosts.sockets() as sockets,
    ):
        sockets.open(mine, wide)
        (reader, writer), idle = await connect(mine), await connect(mine)
        writer.write(ASK.replace(b"Connection: close\r\n", b""))
        async with asyncio.timeout(60):
            await reader.readuntil(b"begun")
            sockets.open(mine, spec())
            go_on.set()
            await reader.readuntil(b"-done")
            writer.write(ASK.replace(NAME.encode(), b"other.example.org"))
            assert b"may not reach other.example.org" in await reader.read()
        writer.close()
        idle[1].close()


async def test_bytes_above_the_rate_are_awaited() -> None:
    """The burst passes at once; what exceeds it is paid for by time, and time refills it."""
    now = [0.0]
    allowance = ByteAllowance(EgressBudget(burst_bytes=1000, bytes_per_second=100_000), clock=lambda: now[0])
    await allowance.spend(1000)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await allowance.spend(5000)
    assert loop.time() - started >= 0.05
    now[0] += 10
    await allowance.spend(1000)
    assert allowance.carried == 7000


async def test_a_socket_that_another_process_took_is_made_again(tmp_path: Path, hosts: PublicHosts) -> None:
    """Opening a sandbox again listens again if the socket's file is not the own one any more."""
    async with directories(tmp_path, 1) as (mine,), hosts.serve(greet), hosts.sockets() as sockets:
        sockets.open(mine, spec())
        (mine / EGRESS_SOCKET).unlink()
        (mine / EGRESS_SOCKET).touch()
        sockets.open(mine, spec())
        assert (await ask(mine)).endswith(b"hello")
        sockets.open(mine, SandboxSpec(label="box", namespace="space"))
        with pytest.raises(FileNotFoundError):
            await connect(mine)
