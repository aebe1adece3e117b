"""M1: what browsers need: CORS of listed origins, tickets for EventSource, subprotocols, ranges of files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway

LISTED = "https://app.example"
FOREIGN = "https://evil.example"
STREAM = {"Accept": "text/event-stream"}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserGateway:
    """A gateway whose API the pages of one origin may use, and two clients."""

    process: GatewayProcess
    session: aiohttp.ClientSession
    mine: ApiClient
    anonymous: ApiClient

    async def conversation(self, name: str) -> str:
        """Run a turn in a conversation, and return the conversation's id."""
        body = {"input": "!echo here", "conversation": name}
        made = await self.mine.call("POST", "/agents/default/turns", body)
        return str(made.body["conversationId"])

    async def ticket(self, conversation: str) -> str:
        """Return a ticket for a conversation."""
        made = await self.mine.call("POST", "/tickets", {"conversation": conversation})
        assert made.status == 201, made.body
        return str(made.body["ticket"])

    async def new_key(self, name: str, *scopes: str) -> ApiClient:
        """Return a client with a new key."""
        made = await self.mine.call("POST", "/accounts/me/keys", {"name": name, "scopes": list(scopes)})
        return ApiClient(session=self.session, url=self.process.url, key=made.body["key"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrowserGateway]:
    """Run a gateway with one listed origin."""
    env = {"DOVECOTE_ALLOWED_ORIGINS": LISTED}
    async with (
        gateway(tmp_path_factory.mktemp("browsers") / "data", env=env) as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        anonymous = ApiClient(session=session, url=process.url, key="")
        yield BrowserGateway(process=process, session=session, mine=mine, anonymous=anonymous)


async def test_m1_a_page_of_a_listed_origin_uses_the_api(browser: BrowserGateway) -> None:
    """Its preflight is answered without a key, and it may read responses and errors; cookies have no use."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-a"}
    for path in ("/agents/default/turns", "/v1/chat/completions", "/accounts/me/agents"):
        preflight = await browser.anonymous.call("OPTIONS", path, None, Origin=LISTED, **asked)
        assert preflight.status == 204, preflight.body
        assert preflight.headers["Access-Control-Allow-Origin"] == LISTED
        assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization, x-a"
        assert "Access-Control-Allow-Credentials" not in preflight.headers
    body = {"input": "!echo from a page"}
    started = await browser.mine.call("POST", "/agents/default/turns", body, Origin=LISTED)
    missing = await browser.mine.call("GET", "/status/trn_none", None, Origin=LISTED)
    refused = await browser.anonymous.call("GET", "/turns", None, Origin=LISTED)
    assert [answer.status for answer in (started, missing, refused)] == [202, 404, 401]
    for answer in (started, missing, refused):
        assert answer.headers["Access-Control-Allow-Origin"] == LISTED
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]
        assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    "origin", [FOREIGN, "null", "https://app.example.evil.example", "http://app.example"]
)
async def test_m1_a_page_of_another_origin_reads_nothing(browser: BrowserGateway, origin: str) -> None:
    """Its preflight fails, and no response names its origin."""
    asked = {"Access-Control-Request-Method": "POST"}
    preflight = await browser.anonymous.call("OPTIONS", "/agents/default/turns", None, Origin=origin, **asked)
    read = await browser.mine.call("GET", "/turns", None, Origin=origin)
    changed = await browser.mine.call("POST", "/agents/default/turns", {"input": "x"}, Origin=origin)
    assert (preflight.status, read.status, changed.status) == (405, 200, 403)
    for answer in (preflight, read, changed):
        assert not [name for name in answer.headers if name.startswith("Access-Control-")]


async def test_a_ticket_opens_the_stream_of_its_conversation_alone(browser: BrowserGateway) -> None:
    """An EventSource of a listed page reads with a ticket; the ticket opens nothing else."""
    conversation, other = await browser.conversation("ticketed"), await browser.conversation("other")
    ticket = await browser.ticket("ticketed")
    for named in (conversation, "ticketed"):
        url = f"{browser.process.url}/conversations/{named}/events?after=0&ticket={ticket}"
        async with browser.session.get(url, headers={**STREAM, "Origin": LISTED}) as stream:
            assert stream.status == 200
            assert stream.headers["Access-Control-Allow-Origin"] == LISTED
            async with asyncio.timeout(60):
                while b"event: turn.completed" not in await stream.content.readline():
                    pass
    page = await browser.anonymous.call("GET", f"/conversations/{conversation}/events?ticket={ticket}")
    assert page.body["items"]
    for path, status in (
        (f"/conversations/{other}/events", 404),
        (f"/conversations/{conversation}/snapshot", 401),
        ("/turns", 401),
    ):
        assert (await browser.anonymous.call("GET", f"{path}?ticket={ticket}")).status == status, path
    for wrong in ("", "x", ticket[:-1], ticket + "A", browser.mine.key):
        answer = await browser.anonymous.call("GET", f"/conversations/{conversation}/events?ticket={wrong}")
        assert answer.status in (401, 422), wrong
    body = {"conversation": conversation}
    assert (await browser.anonymous.call("POST", "/tickets", body)).status == 401
    assert (await browser.mine.call("POST", "/tickets", {"conversation": "unknown"})).status == 404


async def test_a_revoked_key_ends_its_tickets_and_their_streams(browser: BrowserGateway) -> None:
    """An open stream closes, and the ticket opens no further one."""
    conversation = await browser.conversation("revoked")
    reader = await browser.new_key("reader", "read")
    ticket = (await reader.call("POST", "/tickets", {"conversation": conversation})).body["ticket"]
    url = f"{browser.process.url}/conversations/{conversation}/events?ticket={ticket}"
    async with browser.session.get(url, headers=STREAM) as stream:
        assert stream.status == 200
        await stream.content.readline()
        assert (await browser.mine.call("DELETE", "/accounts/me/keys/reader")).status == 204
        async with asyncio.timeout(60):
            await stream.content.read()
    assert (await browser.anonymous.call("GET", url.removeprefix(browser.process.url))).status == 401


async def test_a_browser_authenticates_a_websocket_by_a_subprotocol(browser: BrowserGateway) -> None:
    """The key is in a subprotocol, and the gateway selects the other one; a wrong key is 401."""

    async def ping(*protocols: str) -> tuple[str | None, dict[str, Any]]:
        headers = {"Origin": LISTED}
        url = f"{browser.process.url}/ws"
        async with browser.session.ws_connect(url, protocols=protocols, headers=headers) as socket:
            await socket.send_json({"type": "ping"})
            return socket.protocol, json.loads(await socket.receive_str(timeout=60))

    key = f"dovecote.key.{browser.mine.key}"
    assert await ping("dovecote.v1", key) == ("dovecote.v1", {"type": "pong"})
    assert await ping(key, "dovecote.v1") == ("dovecote.v1", {"type": "pong"})
    for offered, status in (
        (("dovecote.v1", f"{key}x"), 401),
        (("dovecote.v1", "dovecote.key."), 401),
        ((key,), 400),
        (("dovecote.v1", key, f"{key}x"), 400),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await ping(*offered)
        assert refused.value.status == status, offered
    assert not [line for line in browser.process.log if browser.mine.key in line]


async def test_a_download_is_continued_and_checked_for_changes(browser: BrowserGateway) -> None:
    """A range is 206, a known version 304, a range outside 416; HEAD has the headers alone."""
    headers, session = {"Authorization": f"Bearer {browser.mine.key}"}, browser.session
    where = f"{browser.process.url}/files?name=digits.bin"
    async with session.post(where, data=b"0123456789", headers=headers) as uploaded:
        url = browser.process.url + (await uploaded.json())["url"]
    for wanted, status, content in (
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=0-1,4-5", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ):
        async with session.get(url, headers={"Range": wanted}) as answer:
            assert (answer.status, await answer.read()) == (status, content), wanted
            tag = answer.headers["ETag"]
    async with session.get(url, headers={"Range": "bytes=2-4"}) as answer:
        assert answer.headers["Content-Range"] == "bytes 2-4/10"
    async with session.get(url, headers={"Range": "bytes=10-"}) as answer:
        assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */10")
    async with session.get(url, headers={"Range": "bytes=2-4", "If-Range": '"other"'}) as answer:
        assert (answer.status, await answer.read()) == (200, b"0123456789")
    async with session.get(url, headers={"If-None-Match": tag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with session.head(url) as answer:
        assert (answer.status, answer.headers["Content-Length"], await answer.read()) == (200, "10", b"")
