"""A simulated Slack with one channel, and connections to it, for the tests of Slack alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from channels.message import Address, Reply, Update
from channels.port import Accept, Connection, WebhookRequest
from channels.slack import plugin
from channels.slack.simulator import Simulator
from channels.slack.simulator.run import simulate
from channels.testing.connections import UpdateRecorder, open_connection
from channels.testing.memory_state import MemoryChannelState

SECRET = "simulated-signing-secret"
TIMEOUT_SECONDS = 60.0
"""Seconds for opening a modal and answering a post, on busy machines; Slack has three for both."""

ROOM = Address(channel="chn_contract", room="C0ROOM")


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
