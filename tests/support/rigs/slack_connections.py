"""A simulated Slack with one channel, and connections to it, for the tests of Slack alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from typing import Any

import pytest
from aiohttp import web

from channels.message import Address, Reply, Update
from channels.port import Accept, ChannelPage, Connection, PageRequest, PageResponse, WebhookRequest
from channels.slack import plugin
from channels.slack.simulator import Simulator
from channels.slack.simulator.run import simulate
from channels.testing.connections import UpdateRecorder, open_connection
from channels.testing.memory_state import MemoryChannelState

SECRET = "simulated-signing-secret"
TIMEOUT_SECONDS = 60.0
"""Seconds for opening a modal and answering a post, on busy machines; Slack has three for both."""

ROOM = Address(channel="chn_contract", room="C0ROOM")
EAST, WEST = "T0EAST", "T0WEST"
ROOMS = {"C0EAST": EAST, "C0WEST": WEST}


@pytest.fixture(name="simulator")
async def slack_simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Slack with one channel."""
    async with simulate() as simulator:
        simulator.world.room("C0ROOM")
        simulator.world.trigger_seconds = simulator.poster.timeout = TIMEOUT_SECONDS
        yield simulator


@pytest.fixture(name="notes")
def memory_state() -> MemoryChannelState:
    """Return the notes of the connections."""
    return MemoryChannelState()


@pytest.fixture(name="slack")
async def socket_mode_connection(
    simulator: Simulator, notes: MemoryChannelState
) -> AsyncIterator[Connection]:
    """Return a connection by Socket Mode."""
    async with open_connection(plugin, simulator.settings(), notes) as connection:
        yield connection


@pytest.fixture(name="posted_to")
async def http_mode_connection(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that is posted to."""
    async with open_connection(plugin, simulator.settings(mode="http", signing_secret=SECRET)) as connection:
        yield connection


@pytest.fixture(name="app")
async def installable_app(simulator: Simulator, notes: MemoryChannelState) -> AsyncIterator[Connection]:
    """Return a connection of an app that no workspace has installed yet."""
    for room, team in ROOMS.items():
        simulator.world.room(room).team = team
    async with open_connection(plugin, simulator.app_settings(), notes) as connection:
        yield connection


async def show(app: Connection, page: ChannelPage, query: str = "", cookie: str = "") -> PageResponse:
    """Request a page as a browser does."""
    assert app.installations is not None
    return await app.installations.show_page(PageRequest(page=page, query=query, headers={"cookie": cookie}))


async def install(app: Connection, simulator: Simulator, team: str) -> PageResponse:
    """Install the app in a workspace, as a person does with a browser."""
    page = await show(app, "install")
    cookie = next(iter(SimpleCookie(page.headers["Set-Cookie"]).values()))
    code = simulator.server.installations.approve(team)
    query = f"code={code}&state={cookie.value}"
    return await show(app, "oauth", query, f"{cookie.key}={cookie.value}")


def make_reply(text: str, **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key="dlv_1.0", **others)


def thread_address(ts: str, room: str = "C0ROOM") -> Address:
    """Return a thread's address."""
    return Address(channel="chn_contract", room=room, thread=ts)


async def wait_for_update(recorder: UpdateRecorder, kind: type[Update]) -> Any:
    """Wait for the first update of a kind; the bot's own echoes come between."""
    while not (found := [update for update in recorder.updates if isinstance(update, kind)]):
        await recorder.wait(len(recorder.updates) + 1)
    return found[0]


@asynccontextmanager
async def serve_webhook(connection: Connection, accept: Accept) -> AsyncIterator[str]:
    """Serve a connection's `receive` on loopback, as the gateway does; yields the address."""

    async def take(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        incoming = WebhookRequest(headers=headers, body=await request.read())
        answer = await connection.receiver.receive(incoming, accept)
        return web.Response(status=answer.status, body=answer.body)

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()
