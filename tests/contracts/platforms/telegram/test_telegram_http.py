"""The HTTP client of a Telegram bot: limits of time and size, file names, no proxy, one TLS context."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from channels.errors import Ambiguous, Unreachable
from channels.telegram.api import Api, connect
from channels.telegram.http_client import MAX_RESPONSE_BYTES
from channels.telegram.library import InputFile
from channels.telegram.settings import TelegramSettings
from egress.guard import TRUSTED

TOKEN = "1:" + "a" * 35
COUNT_CONTEXTS = """
import asyncio, gc, ssl, sys
from contextlib import AsyncExitStack
from channels.telegram.api import connect
from channels.telegram.settings import TelegramSettings
from egress.guard import TRUSTED

def count():
    gc.collect()
    return sum(isinstance(one, ssl.SSLContext) for one in gc.get_objects())

async def main():
    settings = TelegramSettings.model_validate({"token": sys.argv[1]})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(connect(settings, TRUSTED))
        print(count())
        for _ in range(20):
            await stack.enter_async_context(connect(settings, TRUSTED))
        print(count())

asyncio.run(main())
"""
"""Prints how many TLS contexts a process has with one bot, and with 21."""


class FakeServer:
    """A server that answers each method in its own way, and keeps the uploads."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.connections: set[object] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one call."""
        self.connections.add(request.transport)
        match request.path.rpartition("/")[2]:
            case "silent":
                await asyncio.sleep(3600)
            case "endless":
                return web.Response(body=b" " * (MAX_RESPONSE_BYTES + 1))
            case "half":
                return web.Response(body=b'{"ok": true, "res')
            case "upload":
                await self._keep_file(request)
        return web.json_response({"ok": True, "result": True})

    async def _keep_file(self, request: web.Request) -> None:
        async for part in await request.multipart():
            if part.filename is not None:  # type: ignore[union-attr]
                self.names.append(part.filename)  # type: ignore[union-attr]
                self.sizes.append(len(await part.read()))  # type: ignore[union-attr]


@asynccontextmanager
async def serve(server: FakeServer) -> AsyncIterator[str]:
    """Run the server; yields its URL."""
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def bot(server: FakeServer) -> AsyncIterator[Api]:
    """Open a bot at the server."""
    async with (
        serve(server) as url,
        connect(TelegramSettings.model_validate({"token": TOKEN, "base_url": url}), TRUSTED) as api,
    ):
        yield api


async def test_a_response_that_does_not_come_is_ambiguous() -> None:
    """The call may have been carried out."""
    async with bot(FakeServer()) as api:
        with pytest.raises(Ambiguous, match="silent: "):
            await api.call("silent", {}, timeout=0.2)


@pytest.mark.parametrize("method", ["endless", "half"])
async def test_a_response_that_is_no_answer_is_ambiguous(method: str) -> None:
    """A response that is too long is not read to its end, and half a response is no result."""
    async with bot(FakeServer()) as api:
        with pytest.raises(Ambiguous):
            await api.call(method, {})


async def test_no_connection_means_that_nothing_was_sent() -> None:
    """The port is closed."""
    async with serve(FakeServer()) as url:
        settings = TelegramSettings.model_validate({"token": TOKEN, "base_url": url})
    async with connect(settings, TRUSTED) as api:
        with pytest.raises(Unreachable):
            await api.call("sendMessage", {})


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would see the token."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with bot(FakeServer()) as api:
        assert await api.call("sendMessage", {}) is True


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("report.pdf", "report.pdf"),
        ("Übersicht 日本 👩‍💻.txt", "Übersicht 日本 👩‍💻.txt"),
        ('a"; name="chat_id', "a%22; name=%22chat_id"),
        ("a\r\nX-Header: 1", "a%0D%0AX-Header: 1"),
    ],
)
async def test_a_file_keeps_its_name_and_adds_no_field(name: str, sent: str) -> None:
    """A name is shown as it is; signs that would end the header are escaped."""
    server = FakeServer()
    async with bot(server) as api:
        content = b"x" * 1_500_000
        assert await api.call("upload", {"chat_id": 7, "document": InputFile(content, filename=name)})
    assert (server.names, server.sizes) == ([sent], [1_500_000])


async def test_calls_share_a_connection() -> None:
    """A call after another one opens no connection."""
    server = FakeServer()
    async with bot(server) as api:
        for _ in range(5):
            await api.call("sendMessage", {"chat_id": 7, "text": "hello"})
    assert len(server.connections) == 1


def test_bots_share_one_tls_context() -> None:
    """A TLS context takes 0.75 MB, so that one for each of many bots would fill the memory."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_CONTEXTS, TOKEN], capture_output=True, text=True, check=True
    )
    one, many = done.stdout.split()
    assert one == many


def test_a_bot_does_not_import_httpx() -> None:
    """python-telegram-bot is imported without it, and its own client still works."""
    code = (
        "import sys; import channels.telegram.api; print('httpx' in sys.modules);"
        "from telegram.request import HTTPXRequest; HTTPXRequest(); print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
