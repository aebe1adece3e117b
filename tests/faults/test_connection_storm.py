"""Connections that came and went leave no cost: the counts are those of the open connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_network
from itertools import islice
from pathlib import Path

import pytest

from api_server import ApiServer, open_api_server
from gateway.web.http.context import WebLimits
from gateway_process import gateway

LIMITS = WebLimits(
    auth_failures=100_000, header_deadline=2.0, anonymous_connections=20, connections_per_key=30
)
WITHIN = 60.0
UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Serve the API with low limits on connections."""
    async with open_api_server(tmp_path, bounds=LIMITS) as running:
        yield running


async def exchange(port: int, request: bytes, *, read: Callable[[bytes], bool] = bool) -> bytes:
    """Send bytes, read until `read` accepts the reply or the gateway closes, and close the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reply = b""
    try:
        writer.write(request)
        async with asyncio.timeout(WITHIN):
            while not read(reply) and (piece := await reader.read(4096)):
                reply += piece
    except ConnectionError:
        pass
    finally:
        writer.close()
    return reply


async def open_until_closed(port: int, request: bytes, *, count: int, enough: int) -> None:
    """Send the same bytes on `count` connections and hold them until the gateway closed `enough`."""
    held = {asyncio.create_task(exchange(port, request, read=lambda _reply: False)) for _ in range(count)}
    for done in islice(asyncio.as_completed(held), enough):
        await done
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def send_in_waves(port: int, request: bytes, *, count: int, at_once: int) -> list[bytes]:
    """Send the same bytes on `count` connections, `at_once` of them at a time."""
    replies: list[bytes] = []
    for _ in range(count // at_once):
        replies += await asyncio.gather(*(exchange(port, request) for _ in range(at_once)))
    return replies


async def test_websocket_upgrades_without_a_key_leave_no_count_behind(tmp_path: Path) -> None:
    """After 1,200 unauthenticated upgrades, most of them closed by the gateway, the address is served."""
    async with gateway(tmp_path) as process:
        port = int(process.url.rpartition(":")[2])
        upgrade = UPGRADE.format(host=f"127.0.0.1:{port}").encode()
        for _ in range(2):
            closed_by_gateway = 600 - WebLimits().anonymous_connections
            await open_until_closed(port, upgrade, count=600, enough=closed_by_gateway)
        async with process.http() as session, session.get("/accounts/me") as answer:
            assert answer.status == 200


async def test_half_open_heads_leave_no_count_behind(api: ApiServer) -> None:
    """Heads that never end are closed at the deadline, and then the address counts no connection."""
    await send_in_waves(api.port, b"GET / HTTP/1.1\r\nHost: a\r\n", count=600, at_once=300)
    assert api.connections.open_connections == 0
    assert (await api.mine.call("GET", "/accounts/me")).status == 200


async def test_connections_that_idle_out_free_the_place_of_their_key(api: ApiServer) -> None:
    """A key's keep-alive connections that the gateway closed are not counted any more."""
    request = f"GET /accounts/me HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.mine.key}\r\n\r\n".encode()
    for _ in range(3):
        waiting = [exchange(api.port, request, read=lambda _reply: False) for _ in range(20)]
        replies = await asyncio.gather(*waiting)
        assert {reply[:12] for reply in replies} == {b"HTTP/1.1 200"}
    assert api.connections.open_connections == 0


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_connections_through_a_proxy_count_for_its_clients(tmp_path: Path, is_trusted: bool) -> None:
    """A client that opens too many connections through a trusted proxy does not use up the others' places."""
    proxies = (ip_network("127.0.0.0/8"),) if is_trusted else ()
    limits = WebLimits(body_deadline=WITHIN, anonymous_connections=1)
    async with open_api_server(tmp_path, bounds=limits, trusted_proxies=proxies) as api:
        stuck = [asyncio.create_task(exchange(api.port, post_without_body("203.0.113.1"))) for _ in range(20)]
        first_closed = next(asyncio.as_completed(stuck))
        assert (await first_closed)[:12] == (b"HTTP/1.1 429" if is_trusted else b"")
        reply = await exchange(api.port, post_without_body("203.0.113.2", length=2) + b"{}")
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    assert (reply[:12] == b"HTTP/1.1 404") == is_trusted


async def test_idle_connections_of_proxies_are_kept(tmp_path: Path) -> None:
    """A proxy closes its own, and may send requests over them until then; others are closed soon."""
    limits = WebLimits(body_deadline=WITHIN, header_deadline=0.1)
    proxies = (ip_network("127.0.0.1/32"),)
    async with open_api_server(tmp_path, bounds=limits, trusted_proxies=proxies) as api:
        proxy = await asyncio.open_connection("127.0.0.1", api.port)
        other = await asyncio.open_connection("127.0.0.1", api.port, local_addr=("127.0.0.2", 0))
        for reader, writer in (proxy, other):
            assert await head_of_reply(reader, writer) == b"HTTP/1.1 200 OK"
        await other[0].read()  # until the gateway closes it, which began to wait later
        assert await head_of_reply(*proxy) == b"HTTP/1.1 200 OK"
        for _reader, writer in (proxy, other):
            writer.close()


async def head_of_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a request over an open connection; return the first line of the reply, b"" if it was closed."""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(WITHIN):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
    return head.split(b"\r\n")[0]


def post_without_body(client: str, *, length: int = 100) -> bytes:
    """Return the head of a platform's post that a proxy forwards for a client."""
    lines = ("POST /channels/chn_1/inbound HTTP/1.1", "Host: a", f"X-Forwarded-For: {client}")
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()
