"""discord.py's client as Dovecote uses it: one attempt per call, bounded, and never into a ban."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
import discord
import pytest
from aiohttp import web

from channels.discord import commands, plugin
from channels.discord.api import Api, connect
from channels.discord.invalid_requests import MAX_INVALID_REQUESTS, WINDOW_SECONDS, InvalidRequests
from channels.discord.rest import MAX_BUCKETS, MAX_RESPONSE_BYTES, RestClient, invalid_requests_at
from channels.discord.send import rendering
from channels.discord.settings import DiscordSettings
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import Ambiguous, RateLimited
from channels.message import Address, Message, Reply
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from egress.guard import TRUSTED

CHAT = 4004
ROOM = Address(channel="chn_contract", room=str(CHAT))


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


@asynccontextmanager
async def api_of(body: bytes, content_type: str) -> AsyncIterator[Api]:
    """Open the API of a stand-in that answers everything alike."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": content_type})

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        settings = DiscordSettings.model_validate({"token": "MTIz.x.y", "api_url": url})
        async with connect(settings, TRUSTED) as api:
            yield api
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_the_library_repeats_no_call(simulator: Simulator, status: int) -> None:
    """An error of Discord's servers is reported at once; the gateway decides about the next attempt."""
    async with open_connection(plugin, simulator.settings()) as connection:
        await simulator.fail(status, name="create")
        with pytest.raises(Ambiguous):
            await connection.sender.send(ROOM, Reply(text="x", key="k"))
        assert sum(name == "create" for name, _, _ in simulator.calls) == 1


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
async def test_json_is_read_from_any_content_type(content_type: str) -> None:
    """A proxy may add the character set, which discord.py alone takes for text."""
    async with api_of(b'{"id": "123", "username": "dovecote"}', content_type) as api:
        assert (await api.identify()).username == "dovecote"


@pytest.mark.parametrize(
    "body", [b"{", b"<html>", b'"\xff"', b"[" * 200_000, b" " * (MAX_RESPONSE_BYTES + 1)], ids=len
)
async def test_a_response_that_is_no_json_or_has_no_end_is_ambiguous(body: bytes) -> None:
    """The call may have been carried out; no more than a bounded response is read."""
    async with api_of(body, "application/json") as api:
        with pytest.raises(Ambiguous):
            await api.identify()


def test_the_library_warns_of_nothing_when_commands_are_described(caplog: pytest.LogCaptureFixture) -> None:
    """Without the intent for servers it logs a warning at each start, though nothing is wrong."""
    assert commands.definitions()
    assert not caplog.records


class TimeoutRecorder:
    """A session without a network that notes how long each call may take."""

    connector = None

    def __init__(self) -> None:
        self.timeouts: list[aiohttp.ClientTimeout] = []

    def request(self, *_args: object, timeout: aiohttp.ClientTimeout, **_options: object) -> None:
        """Note a call, and fail."""
        self.timeouts.append(timeout)
        raise aiohttp.ClientConnectionError


async def test_an_upload_may_take_longer_than_its_response() -> None:
    """A file of 50 MiB takes minutes on a slow line; the response must come soon after it."""
    session = TimeoutRecorder()
    client = RestClient("http://127.0.0.1", cast("aiohttp.ClientSession", session), token="x")
    file = discord.File(io.BytesIO(b"x"), "a.txt")
    for parameters in (rendering.message("text"), rendering.message("", files=(file,))):
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.send_message(CHAT, params=parameters)
    assert [(one.total, one.sock_read) for one in session.timeouts] == [(30.0, None), (None, 30.0)]


def test_invalid_requests_pause_before_discord_bans() -> None:
    """Half of the allowed 10,000 in ten minutes; shared limits and other errors do not count."""
    now = 0.0
    count = InvalidRequests(clock=lambda: now)
    for _ in range(MAX_INVALID_REQUESTS):
        count.record(404, {})
        count.record(429, {"X-RateLimit-Scope": "shared"})
    assert count.wait() == 0
    for status in [401, 403, 429, 403] * (MAX_INVALID_REQUESTS // 4):
        assert count.wait() == 0
        count.record(status, {})
    now = 100.0
    assert count.wait() == WINDOW_SECONDS - 100
    now = WINDOW_SECONDS
    assert count.wait() == 0


@pytest.fixture
def fresh_counts() -> Iterator[None]:
    """Count from 0, before and after: another simulator of this process may have the same port."""
    invalid_requests_at.cache_clear()
    yield
    invalid_requests_at.cache_clear()


@pytest.mark.usefixtures("fresh_counts")
async def test_a_process_with_too_many_invalid_requests_calls_nothing(simulator: Simulator) -> None:
    """All bots of an address pause, commands and answers to interactions included."""
    async with open_connection(plugin, simulator.settings()) as connection:
        for _ in range(MAX_INVALID_REQUESTS - 1):
            invalid_requests_at(f"{simulator.url}/api/v10").record(403, {})
        await simulator.fail(403, name="create")
        with pytest.raises(Exception, match="Error 403"):
            await connection.sender.send(ROOM, Reply(text="x", key="k"))
        before = len(simulator.calls)
        for call in (connection.sender.send(ROOM, Reply(text="x", key="k")), connection.sender.typing(ROOM)):
            with pytest.raises(RateLimited) as caught:
                await call
            assert caught.value.scope == "account"
        assert len(simulator.calls) == before


async def test_buckets_do_not_accumulate(simulator: Simulator) -> None:
    """Each interaction has a bucket of its own, so the least recently used ones are forgotten."""
    async with connect(DiscordSettings.model_validate(simulator.settings()), TRUSTED) as api:
        first = api.interactions.get_ratelimit("first")
        for number in range(MAX_BUCKETS - 1):
            api.interactions.get_ratelimit(str(number))
        assert api.interactions.get_ratelimit("first") is first
        for number in range(MAX_BUCKETS, 2 * MAX_BUCKETS):
            api.interactions.get_ratelimit(str(number))
        assert api.interactions.get_ratelimit("first") is not first
        assert len(api.interactions._buckets) == MAX_BUCKETS


async def test_two_bots_of_one_process_have_endpoints_of_their_own(simulator: Simulator) -> None:
    """Nothing about an endpoint is global to the process, neither for calls nor for the gateway."""
    recorders = UpdateRecorder(), UpdateRecorder()
    async with (
        simulate() as other,
        open_connection(plugin, simulator.settings()) as first,
        open_connection(plugin, other.settings()) as second,
        receiving(first, recorders[0]),
        receiving(second, recorders[1]),
    ):
        await other.server_channel(CHAT)
        for discord, connection, recorder in (
            (simulator, first, recorders[0]),
            (other, second, recorders[1]),
        ):
            await discord.say(CHAT, f"to {discord.port}")
            await recorder.wait(1)
            await connection.sender.send(ROOM, Reply(text=f"from {discord.port}", key="k"))
        for discord, recorder in zip((simulator, other), recorders, strict=True):
            assert [post.text for post in discord.messages()] == [f"from {discord.port}"]
            assert [one.text for one in recorder.updates if isinstance(one, Message)] == [
                f"to {discord.port}"
            ]


def test_the_library_is_imported_when_a_channel_is_opened() -> None:
    """A gateway without a Discord bot does not hold discord.py in memory."""
    code = "import sys, channels.discord; sys.exit('discord' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
