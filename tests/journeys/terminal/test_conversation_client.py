"""The conversation client of the command line, at a gateway that is killed at the worst moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from gateway.cli.client import GatewayClient, open_gateway
from gateway.cli.errors import CommandFailed, ExitCode, GatewayUnreachable
from gateway.cli.terminal.conversation_client import CONNECTED_AGAIN, DISCONNECTED, ConversationClient
from nats_servers import free_ports

SUBSCRIBED = {"type": "subscribed", "conversation": "cnv_1", "epoch": "one", "last_seq": 0}
CAUGHT_UP = {"type": "caught_up", "seq": 0}


@dataclass(frozen=True, kw_only=True)
class WatchedClient(GatewayClient):
    """A client of a gateway; `refused` is set when no gateway answers."""

    refused: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open the WebSocket."""
        try:
            async with super().socket() as socket:
                yield socket
        except GatewayUnreachable:
            self.refused.set()
            raise


@asynccontextmanager
async def socket_server(
    port: int, opened: asyncio.Event, *, answers: bool, refusal: str = ""
) -> AsyncIterator[None]:
    """Serve a WebSocket that answers a subscription, or never answers; its end cuts all connections.

    With a `refusal` everything after the subscription is unavailable, for this reason.
    """

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive_json()
        assert request.transport is not None
        connections.append(request.transport)
        opened.set()
        if answers:
            await socket.send_json(SUBSCRIBED)
        if refusal:
            await socket.send_json(CAUGHT_UP)
            await socket.send_json({"type": "error", "code": "unavailable", "detail": refusal})
        await socket.receive()
        return socket

    connections: list[asyncio.Transport] = []
    app = web.Application()
    app.router.add_get("/ws", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        for connection in connections:
            connection.abort()
        await runner.cleanup()


async def test_a_gateway_killed_before_it_answers_is_asked_again() -> None:
    """The client had a connection, so it waits for the next gateway, although none was subscribed to."""
    (port,) = free_ports(1)
    async with open_gateway(f"http://127.0.0.1:{port}", None) as gateway:
        watched = WatchedClient(url=gateway.url, session=gateway.session)
        frames = ConversationClient(watched, "cnv_1").frames()
        first, second = asyncio.Event(), asyncio.Event()
        async with socket_server(port, first, answers=False):
            waiting = asyncio.ensure_future(anext(frames))
            await first.wait()
        await watched.refused.wait()
        async with socket_server(port, second, answers=True):
            assert (await waiting)["epoch"] == "one"
        await frames.aclose()


async def test_a_person_reads_that_the_connection_is_lost_and_waits() -> None:
    """Who types at a terminal may wait longer than all attempts; each loss is reported once."""
    (port,) = free_ports(1)
    reports: asyncio.Queue[str] = asyncio.Queue()
    asked = asyncio.Event()
    opened = asyncio.Event()

    def gives_up() -> bool:
        asked.set()
        return False

    async with open_gateway(f"http://127.0.0.1:{port}", None) as gateway:
        client = ConversationClient(gateway, "cnv_1", retry_delays=(0, 0, 0))
        frames = client.frames(report=reports.put_nowait, gives_up=gives_up)
        async with socket_server(port, opened, answers=True):
            assert (await anext(frames))["epoch"] == "one"
            waiting = asyncio.ensure_future(anext(frames))
        async with asyncio.timeout(30):
            assert await reports.get() == DISCONNECTED
            await asked.wait()
            async with socket_server(port, opened, answers=True):
                assert (await waiting)["epoch"] == "one"
            assert await reports.get() == CONNECTED_AGAIN
        await frames.aclose()


async def test_a_gateway_that_never_answered_is_reported_at_once() -> None:
    """A wrong address is an error of the person, who need not wait for reconnections."""
    (port,) = free_ports(1)
    async with open_gateway(f"http://127.0.0.1:{port}", None) as gateway:
        with pytest.raises(GatewayUnreachable):
            await anext(ConversationClient(gateway, "cnv_1").frames())


async def test_a_gateway_that_always_refuses_ends_the_command_with_its_reason() -> None:
    """The exit code is not that of an unreachable gateway; a subscription does not restart the count."""
    (port,) = free_ports(1)
    async with (
        open_gateway(f"http://127.0.0.1:{port}", None) as gateway,
        socket_server(port, asyncio.Event(), answers=True, refusal="the disk is full"),
    ):
        client = ConversationClient(gateway, "cnv_1", retry_delays=(0, 0))
        with pytest.raises(CommandFailed, match="the disk is full") as raised:
            await _read_all(client)
    assert raised.value.code is ExitCode.FAILED


async def _read_all(client: ConversationClient) -> None:
    async with asyncio.timeout(30):
        async for frame in client.frames():
            assert frame in (SUBSCRIBED, CAUGHT_UP)


async def test_a_message_waits_for_the_subscription() -> None:
    """Else it could be accepted before the client's position is known, and all history would follow."""
    sent: list[str] = []

    async def refuse_the_subscription(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive_json()
        await socket.send_json({"type": "error", "code": "unavailable", "detail": "try again"})
        sent.extend([message.data async for message in socket])
        return socket

    app = web.Application()
    app.router.add_get("/ws", refuse_the_subscription)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with open_gateway(f"http://127.0.0.1:{port}", None) as gateway:
        client = ConversationClient(gateway, "one", retry_delays=())
        await client.send_message("hello")
        with pytest.raises(CommandFailed, match="try again"):
            await anext(client.frames())
    await runner.cleanup()
    assert sent == []
