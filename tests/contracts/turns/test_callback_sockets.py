"""The callback sockets: one for each sandbox, and what one sandbox sends costs another nothing."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.infra.callback_sockets import CallbackBudget, CallbackSockets, RefillingAllowance
from gateway.web.callback_connection import CallbackRunner

WITHIN = 60.0
POST = b"POST / HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n\r\n"
NEVER = 1e-9


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory whose path is short enough for a socket, however deep the test run's are."""
    with tempfile.TemporaryDirectory(prefix="callbacks-") as path:
        yield Path(path)


async def say_who(request: web.Request) -> web.Response:
    """Answer with the client's name, without reading the body."""
    return web.Response(text=request.remote)


@asynccontextmanager
async def serving(
    root: Path, budget: CallbackBudget, *, limit: int | None = None
) -> AsyncIterator[tuple[CallbackSockets, web.Server]]:
    """Serve an application that names its client on the callback sockets below `root`."""
    application = web.Application()
    application.router.add_post("/", say_who)
    runner = CallbackRunner(application)
    await runner.setup()
    sockets = CallbackSockets(root, budget, limit=limit)
    assert runner.server is not None
    try:
        async with sockets.serving(runner.connect):
            yield sockets, runner.server
    finally:
        await runner.cleanup()


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a socket as soon as a server listens."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await asyncio.open_unix_connection(path)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.01)


async def ask(path: Path, body: bytes = b"") -> bytes:
    """Send one request and return the whole reply, up to the end of the connection."""
    reader, writer = await connect(path)
    writer.write(POST % len(body) + body)
    async with asyncio.timeout(WITHIN):
        reply = await reader.read()
    writer.close()
    return reply


async def wait_for_connections(server: web.Server, count: int) -> None:
    """Wait until so many connections are accepted and open."""
    async with asyncio.timeout(WITHIN):
        while len(server.connections) != count:  # noqa: ASYNC110 - aiohttp sends no notification
            await asyncio.sleep(0.01)


async def test_a_connection_beyond_the_budget_waits_in_the_kernel(directory: Path) -> None:
    """Of five silent connections two are accepted, and the others as soon as one of those is closed."""
    async with serving(directory, CallbackBudget(connections=2)) as (sockets, server):
        sockets.open("one")
        held = [await connect(sockets.socket("one")) for _ in range(5)]
        await wait_for_connections(server, 2)
        sockets.open("two")
        assert b" 200 OK" in await ask(sockets.socket("two"))
        assert len(server.connections) == 2
        for _, writer in held[:3]:
            writer.close()
        held[3][1].write(POST % 0)
        async with asyncio.timeout(WITHIN):
            assert b" 200 OK" in await held[3][0].read()
        for _, writer in held[3:]:
            writer.close()


@pytest.mark.parametrize(
    "budget",
    [
        CallbackBudget(requests=2, requests_per_second=NEVER),
        CallbackBudget(received_bytes=20_000, bytes_per_second=1),
    ],
    ids=["requests", "bytes"],
)
async def test_a_sandbox_that_used_up_its_budget_is_not_accepted(
    directory: Path, budget: CallbackBudget
) -> None:
    """After two large requests the third is not accepted, while another sandbox is served."""
    async with serving(directory, budget) as (sockets, server):
        for name in ("one", "two"):
            sockets.open(name)
        replies = [await ask(sockets.socket("one"), b"x" * 12_000) for _ in range(2)]
        assert all(b" 200 OK" in reply for reply in replies)
        waiting = asyncio.create_task(ask(sockets.socket("one")))
        assert b" 200 OK" in await ask(sockets.socket("two"))
        assert (len(server.connections), waiting.done()) == (0, False)
        waiting.cancel()


async def test_each_sandbox_is_a_client_of_its_own(directory: Path) -> None:
    """Every limit by address is one by sandbox, so that one sandbox cannot lock another out."""
    async with serving(directory, CallbackBudget()) as (sockets, _server):
        names = set()
        for name in ("one", "two"):
            sockets.open(name)
            names.add((await ask(sockets.socket(name))).rpartition(b"\r\n\r\n")[2])
    assert len(names) == 2


async def test_a_socket_lives_as_long_as_its_sandbox(directory: Path) -> None:
    """A socket is served again after a restart, in the same directory, and removed with its sandbox."""
    before = CallbackSockets(directory)
    before.open("one")
    inode = before.directory("one").stat().st_ino
    for _ in range(2):
        async with serving(directory, CallbackBudget()) as (sockets, _server):
            assert b" 200 OK" in await ask(sockets.socket("one"))
            assert sockets.directory("one").stat().st_ino == inode
    async with serving(directory, CallbackBudget()) as (sockets, _server):
        assert b" 200 OK" in await ask(sockets.socket("one"))
        sockets.close("one")
        sockets.close("one")
        assert not any(os.scandir(directory))


async def test_sandboxes_do_not_use_up_the_file_descriptors(directory: Path) -> None:
    """Beyond the limit a sandbox gets no socket until another one is gone and it is opened again."""
    async with serving(directory, CallbackBudget(), limit=1) as (sockets, _server):
        sockets.open("one")
        sockets.open("two")
        assert b" 200 OK" in await ask(sockets.socket("one"))
        assert not sockets.socket("two").exists()
        sockets.close("one")
        sockets.open("two")
        assert b" 200 OK" in await ask(sockets.socket("two"))


async def test_a_long_data_directory_has_sockets_too(directory: Path) -> None:
    """A path longer than the kernel takes for a socket is no obstacle."""
    root = directory / ("deep" * 30)
    async with serving(root, CallbackBudget()) as (sockets, _server):
        sockets.open("one")
        (directory / "s").symlink_to(sockets.directory("one"))
        assert b" 200 OK" in await ask(directory / "s" / "callback.sock")


def test_an_overdrawn_allowance_is_refilled_by_time() -> None:
    """What was spent beyond the amount is waited for, and idle time adds no more than the capacity."""
    now = 0.0
    allowance = RefillingAllowance(10, 2, clock=lambda: now)
    assert allowance.seconds_until(10) == 0
    allowance.spend(15)
    assert allowance.seconds_until(1) == 3
    now = 3.0
    assert allowance.seconds_until(1) == 0
    now = 1000.0
    allowance.spend(9)
    assert allowance.seconds_until(1) == 0
    assert allowance.seconds_until(2) == 0.5
