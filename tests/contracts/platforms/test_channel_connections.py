"""No channel of an account reaches an address that the operator has not allowed, however it is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from channels.discord.api import connect as connect_discord
from channels.discord.receive.gateway import DiscordGateway
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError
from channels.github.api import connect as connect_github
from channels.github.settings import GitHubSettings
from channels.github.simulator.rest import private_key
from channels.pancake.api import connect as connect_pancake
from channels.pancake.settings import PancakeSettings
from channels.slack.api import connect as connect_slack
from channels.slack.settings import SlackSettings
from channels.telegram.api import connect as connect_telegram
from channels.telegram.settings import TelegramSettings
from channels.testing.memory_state import MemoryChannelState
from channels.zalo.api import connect as connect_zalo
from channels.zalo.settings import ZaloSettings
from egress.guard import TRUSTED, EgressGuard
from egress.policy import EgressPolicy

GUARD = EgressGuard(policy=EgressPolicy(allow=(ip_network("127.0.0.2/32"),)))
"""The stand-in of a platform may be at 127.0.0.2; 127.0.0.1 is not allowed."""

TOKEN = "1:" + "a" * 35
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "telegram": {"token": TOKEN},
    "slack": {"bot_token": "xoxb-1", "app_token": "xapp-1"},
    "discord": {"token": "MTIz.x.y"},
    "github": {"app_id": "1", "private_key": private_key("app"), "mode": "polling"},
    "pancake": {"page_id": "1", "page_access_token": "t" * 20},
    "zalo": {"token": "1:a"},
}
SPELLINGS = (
    "HTTP://127.0.0.1:{port}",
    "http://127.0.0.1:{port}",
    "http://[::ffff:127.0.0.1]:{port}",
    "http://[::1]:{port}",
    "http://localhost:{port}",
    "http://LocalHost.:{port}",
    "http://0.0.0.0:{port}",
    "http://rebound.localhost:{port}",
)


class _Target:
    """A server on every loopback address that counts connections; it must not be reached."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    async def accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count a connection and close it."""
        self.connections += 1
        writer.close()


@pytest.fixture
async def target() -> AsyncIterator[_Target]:
    """Return a server on 127.0.0.1 and ::1."""
    found = _Target()
    server = await asyncio.start_server(found.accept, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        second = await asyncio.start_server(found.accept, "::1", found.port)
    except OSError:  # this machine has no IPv6
        second = server
    yield found
    server.close()
    second.close()


@asynccontextmanager
async def identified(kind: str, url: str, guard: EgressGuard) -> AsyncIterator[Any]:
    """Open an adapter's API at a URL."""
    given = dict(SETTINGS[kind])
    match kind:
        case "telegram":
            telegram = TelegramSettings.model_validate({**given, "base_url": url})
            async with connect_telegram(telegram, guard) as bot:
                yield bot
        case "slack":
            slack = SlackSettings.model_validate({**given, "base_url": url})
            async with connect_slack(slack, guard) as app:
                yield app
        case "github":
            async with connect_github(
                GitHubSettings.model_validate({**given, "base_url": url}), guard
            ) as hub:
                yield hub
        case "pancake":
            page = PancakeSettings.model_validate({**given, "base_url": url})
            async with connect_pancake(page, guard) as inbox:
                yield SimpleNamespace(identify=inbox.list_conversations)
        case "zalo":
            zalo = ZaloSettings.model_validate({**given, "base_url": url})
            async with connect_zalo(zalo, MemoryChannelState(), guard) as chats:
                yield chats
        case _:
            discord = DiscordSettings.model_validate({**given, "api_url": url})
            async with connect_discord(discord, guard) as client:
                yield client


@pytest.mark.parametrize("kind", sorted(SETTINGS))
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_of_loopback_is_connected_to(kind: str, spelling: str, target: _Target) -> None:
    """The address is judged where the connection is made, so its spelling and its name do not matter."""
    async with identified(kind, spelling.format(port=target.port), GUARD) as api:
        with pytest.raises(ChannelError, match=r"only https at port 443|private, local|Connect|resolve|DNS"):
            await api.identify()
    assert target.connections == 0


async def test_the_same_client_reaches_loopback_for_the_operator(target: _Target) -> None:
    """The check above proves something: without the guard's refusal the server is reached."""
    for kind in SETTINGS:
        async with identified(kind, f"http://127.0.0.1:{target.port}", TRUSTED) as api:
            with pytest.raises(ChannelError):
                await api.identify()
    assert target.connections >= len(SETTINGS)


@pytest.mark.parametrize("url", ["WS://127.0.0.1:{port}/", "ws://[::ffff:127.0.0.1]:{port}/"])
async def test_no_spelling_of_a_gateway_is_connected_to(url: str, target: _Target) -> None:
    """Discord's WebSocket goes through the same guard."""
    given = {**SETTINGS["discord"], "gateway_url": url.format(port=target.port)}
    settings = DiscordSettings.model_validate(given)
    async with connect_discord(settings, GUARD) as api:
        with pytest.raises(ChannelError, match="only https at port 443"):
            await DiscordGateway(api, settings).run(_nothing, _ignore)
    assert target.connections == 0


async def _nothing(_event: Mapping[str, Any]) -> bool:
    return False


def _ignore(_is_receiving: bool, _reason: str = "", /) -> None:
    return None


@asynccontextmanager
async def platform_at_allowed_address(answer: Mapping[str, Any], location: str) -> AsyncIterator[str]:
    """Run a stand-in of a platform that answers or redirects; yields its URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/redirect"):
            return web.Response(status=302, headers={"Location": location})
        return web.json_response(answer)

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.2", 0)
    await site.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.2:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_link_of_a_fake_platform_does_not_lead_to_loopback(target: _Target) -> None:
    """A file link, an upload URL and a socket URL at another origin are refused, at any port."""
    home = f"http://127.0.0.1:{target.port}"
    answer = {"ok": True, "url": f"ws://127.0.0.1:{target.port}/link"}
    async with (
        platform_at_allowed_address(answer, home) as url,
        identified("slack", url, GUARD) as slack,
        identified("discord", url, GUARD) as discord,
    ):
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: anext(slack.fetch(f"{home}/file")),
            lambda: slack.upload(f"{home}/upload", b"x"),
            lambda: slack.respond(f"{home}/respond", {}),
            lambda: slack.open_socket(f"ws://127.0.0.1:{target.port}/link", heartbeat=30.0),
            lambda: anext(slack.fetch(f"{url.rpartition(':')[0]}:{target.port}/other-port")),
            lambda: anext(discord.fetch(f"{home}/file")),
            lambda: anext(discord.fetch(f"{url}@127.0.0.1:{target.port}/file")),
        )
        for call in calls:
            with pytest.raises(ChannelError):
                await call()
    assert target.connections == 0


async def test_a_redirect_of_a_fake_platform_is_not_followed(target: _Target) -> None:
    """An allowed server that redirects to loopback gets no second request, WebSockets included."""
    home = f"http://127.0.0.1:{target.port}"
    async with platform_at_allowed_address({"ok": True}, home) as url:
        async with identified("slack", url, GUARD) as slack:
            with pytest.raises(ChannelError):
                await anext(slack.fetch(f"{url}/redirect"))
        async with identified("telegram", f"{url}/redirect", GUARD) as telegram:
            with pytest.raises(ChannelError):
                await telegram.identify()
        given = {**SETTINGS["discord"], "gateway_url": f"ws{url.removeprefix('http')}/redirect"}
        settings = DiscordSettings.model_validate(given)
        for guard in (GUARD, TRUSTED):
            async with connect_discord(settings, guard) as api:
                with pytest.raises(ChannelError):
                    await DiscordGateway(api, settings).run(_nothing, _ignore)
    assert target.connections == 0
