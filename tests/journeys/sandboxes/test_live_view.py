"""A link to a sandbox's desktop: through the gateway, for one sandbox of one account, until it expires."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from api_server import ApiClient
from example_packages import add_distribution
from gateway.web.stream.live_page import STORAGE_SCRIPT
from gateway.web.stream.live_view import MAX_PAGE_BYTES
from gateway_process import gateway

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT = "<script>document.title = localStorage.length</script>"
PAGE = f"<!doctype html><HEAD lang='en'>{SCRIPT}</HEAD>"


@dataclass
class Desktop:
    """A server such as that of a desktop: a page, a WebSocket that echoes, and a redirect."""

    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    ends: asyncio.Queue[tuple[int | None, str | None]] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen on loopback."""
        application = web.Application()
        application.router.add_get("/vnc.html", self._page)
        application.router.add_get("/websockify", self._socket)
        application.router.add_get("/query", self._query)
        application.router.add_get("/away", self._away)
        application.router.add_get("/broken", self._broken)
        application.router.add_get("/long", self._long)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        self.requests.append((request.path_qs, dict(request.headers)))
        headers = {"Set-Cookie": "stolen=1", "Access-Control-Allow-Credentials": "true"}
        return web.Response(text=PAGE, content_type="text/html", headers=headers)

    async def _away(self, _request: web.Request) -> web.Response:
        raise web.HTTPFound("/vnc.html")

    async def _query(self, request: web.Request) -> web.Response:
        return web.Response(text=request.rel_url.raw_query_string)

    async def _broken(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"begin")
        assert request.transport is not None
        request.transport.close()
        return response

    async def _long(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(MAX_PAGE_BYTES + 1)})
        await response.prepare(request)
        return response

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("binary", "tty"))
        await socket.prepare(request)
        while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            if message.data == b"close":
                code = int(request.query.get("code", "1000"))
                await socket.close(code=code, message=request.query["why"].encode())
            else:
                await socket.send_bytes(b"echo " + message.data)
        self.ends.put_nowait((socket.close_code, message.extra))
        return socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """A gateway with a sandbox whose desktop runs, and clients."""

    url: str
    mine: ApiClient
    session: aiohttp.ClientSession
    sandbox: str
    desktop: Desktop

    async def status(self, path: str, **headers: str) -> int:
        """Return how the gateway answers a path without a key."""
        async with self.session.get(self.url + path, headers=headers, allow_redirects=False) as answer:
            return answer.status


@asynccontextmanager
async def views(directory: Path) -> AsyncIterator[Views]:
    """Run a gateway whose agent has used a sandbox with a desktop."""
    add_distribution(
        directory / "site", "my-package", {"dovecote.sandboxes": {"exposed": "exposed_sandboxes:plugin"}}
    )
    (directory / "dovecote.toml").write_text("[sandbox.exposed]\n")
    desktop = Desktop()
    path = os.pathsep.join([str(directory / "site"), str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    options = ["--config", str(directory / "dovecote.toml")]
    async with desktop.running():
        env = {"PYTHONPATH": path, "EXPOSED_URL": desktop.url}
        async with (
            gateway(directory / "data", env=env, options=options) as process,
            process.http() as session,
            aiohttp.ClientSession() as anonymous,
        ):
            mine = ApiClient(session=session, url=process.url, key=process.key)
            sandbox = {"name": "box", "config": {"provider": "exposed", "persistent": True}}
            assert (await mine.call("POST", "/accounts/me/sandboxes", sandbox)).status == 201
            agent = {"name": "there", "config": {"model": "builtin:shell", "sandbox": "box"}}
            assert (await mine.call("POST", "/accounts/me/agents", agent)).status == 201
            asked = {"model": "there", "messages": [{"role": "user", "content": "!echo pigeon"}]}
            assert (await mine.call("POST", "/v1/chat/completions", asked)).status == 200
            (found,) = (await mine.call("GET", "/sandboxes")).body["items"]
            yield Views(url=process.url, mine=mine, session=anonymous, sandbox=found["id"], desktop=desktop)


async def create(given: Views, client: ApiClient, **body: Any) -> str:
    """Create a link and return its part before the page."""
    made = await client.call("POST", f"/sandboxes/{given.sandbox}/views", body)
    assert made.status == 201, made.body
    assert made.body["url"].endswith("/vnc.html?autoconnect=1&resize=scale")
    return str(made.body["url"].rpartition("/")[0])


async def check_queries(given: Views, link: str) -> None:
    """Check that the program gets the query of a request, beside what its own address has."""
    for sent, got in (("a=1&a=b%2Bc&flag", "a=1&a=b%2Bc&flag"), ("", ""), ("x=%C3%A9+y", "x=%C3%A9+y")):
        async with given.session.get(URL(f"{given.url}{link}/query?{sent}", encoded=True)) as answer:
            assert await answer.text() == got


async def check_close_codes(given: Views, link: str) -> None:
    """Check that each side gets the code and the reason with which the other one closes a WebSocket."""
    socket_url = f"{given.url}{link}/websockify"
    async with given.session.ws_connect(socket_url, protocols=("other", "tty")) as socket:
        assert socket.protocol == "tty"
    await given.desktop.ends.get()
    for code, why in ((4004, "no such token"), (1001, "going away"), (1000, "")):
        async with given.session.ws_connect(f"{socket_url}?code={code}&why={why}") as socket:
            await socket.send_bytes(b"close")
            ended = await socket.receive(timeout=60)
            assert (ended.type, ended.data, ended.extra) == (aiohttp.WSMsgType.CLOSE, code, why)
        await given.desktop.ends.get()
        async with given.session.ws_connect(socket_url) as socket:
            await socket.close(code=code, message=why.encode())
        async with asyncio.timeout(60):
            assert await given.desktop.ends.get() == (code, why)


async def test_a_link_opens_the_desktop_of_its_sandbox_alone(tmp_path: Path) -> None:
    """The page and its WebSocket pass without a key; the page is foreign, and a key's end is the link's."""
    async with views(tmp_path) as given:
        made = await given.mine.call("POST", "/accounts/me/keys", {"name": "viewer", "scopes": ["admin"]})
        viewer = ApiClient(session=given.session, url=given.url, key=made.body["key"])
        link = await create(given, viewer, minutes=5)
        sent = {"Cookie": "a=b", "Authorization": "Bearer other", "X-Own": "1"}
        async with given.session.get(f"{given.url}{link}/vnc.html?autoconnect=1", headers=sent) as page:
            shown = PAGE.replace(SCRIPT, STORAGE_SCRIPT.decode() + SCRIPT)
            assert (page.status, await page.text()) == (200, shown)
            assert page.headers["Content-Security-Policy"].startswith("sandbox allow-scripts")
            assert "allow-same-origin" not in page.headers["Content-Security-Policy"]
            assert page.headers["Access-Control-Allow-Origin"] == "*"
            assert "Set-Cookie" not in page.headers
            assert "Access-Control-Allow-Credentials" not in page.headers
        ((path, headers),) = given.desktop.requests
        assert path == "/vnc.html?autoconnect=1"
        assert not {"Cookie", "Authorization", "X-Own"} & headers.keys()
        for wrong in (f"{link}x/vnc.html", f"{link[:-1]}/vnc.html", f"{link}/other", f"{link}/away"):
            assert await given.status(wrong) == 404, wrong
        async with given.session.get(f"{given.url}{link}/broken") as broken:
            assert broken.status == 200
            async with asyncio.timeout(30):
                with pytest.raises(aiohttp.ClientPayloadError):
                    await broken.read()
        assert await given.status(f"{link}/long") == 502
        await check_queries(given, link)
        await check_close_codes(given, link)
        for method in ("POST", "DELETE"):
            assert (await given.mine.call(method, f"{link}/vnc.html")).status == 405
        socket = await given.session.ws_connect(
            f"{given.url}{link}/websockify", protocols=("binary",), headers={"Origin": "null"}
        )
        await socket.send_bytes(b"RFB")
        assert (socket.protocol, await socket.receive_bytes(timeout=60)) == ("binary", b"echo RFB")
        assert (await given.mine.call("DELETE", "/accounts/me/keys/viewer")).status == 204
        ended = await socket.receive(timeout=60)
        assert (ended.type, ended.data) == (aiohttp.WSMsgType.CLOSE, 4401)
        assert await given.status(f"{link}/vnc.html") == 404
        again = await create(given, given.mine)
        assert await given.status(f"{again}/vnc.html") == 200
        assert (await given.mine.call("POST", f"/sandboxes/{given.sandbox}/stop")).status == 200
        assert await given.status(f"{again}/vnc.html") == 503
        assert (await given.mine.call("DELETE", f"/sandboxes/{given.sandbox}")).status == 204
        assert await given.status(f"{again}/vnc.html") == 404
        refused = await given.mine.call("POST", f"/sandboxes/{given.sandbox}/views", {})
        assert refused.status == 404
