"""A peer that leaves at any moment of a request is not an error of the gateway."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from api_server import open_api_server
from gateway.web.http.auth import PublicAccess
from gateway.web.http.route import ApiCall, ApiRoute, NoContent
from gateway.web.server import assemble
from gateway_process import GatewayProcess, gateway
from turn_requests import is_finished, poll_until, start_turn

TIMES = 15
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
BODY = json.dumps({"input": "!echo hi", "model": "default", "messages": []})
SSE = "Accept: text/event-stream\r\n"
JSON = "Content-Type: application/json\r\n"

TURN = f"POST /agents/default/turns HTTP/1.1\r\n{JSON}"
INBOUND = f"POST /channels/chn_1/inbound HTTP/1.1\r\n{JSON}"

REQUESTS = {
    "half a body": f"{TURN}Content-Length: 500\r\n|{BODY}",
    "half a chunk": f"{TURN}Transfer-Encoding: chunked\r\n|1f4\r\n{BODY}",
    "half an admin body": f"POST /accounts/me/agents HTTP/1.1\r\n{JSON}Content-Length: 500\r\n|{BODY}",
    "half an upload": "POST /files?name=a.bin HTTP/1.1\r\nContent-Length: 500000\r\n|" + "x" * 1000,
    "half a platform's post": f"{INBOUND}Content-Length: 500\r\n|{BODY}",
    "before the handshake": f"GET /ws HTTP/1.1\r\n{UPGRADE}|",
    "before the stream's head": f"GET /conversations/one/events HTTP/1.1\r\n{SSE}|",
    "before a page": "GET /conversations/one/events?after=0 HTTP/1.1\r\n|",
    "before an AG-UI stream": f"POST /agui HTTP/1.1\r\n{SSE}{JSON}Content-Length: {len(BODY)}\r\n|{BODY}",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with one conversation."""
    data: Path = tmp_path_factory.mktemp("leaving") / "data"
    async with gateway(data) as running:
        turn = await start_turn(running, "!echo hi", conversation="one")
        await poll_until(running, f"/status/{turn['turnId']}", is_finished)
        yield running


def leave(process: GatewayProcess, request: str, *, reset: bool) -> None:
    """Send a request and close the connection at once, with a reset or in order."""
    head, _, body = request.partition("|")
    credentials = f"Host: 127.0.0.1:{process.port}\r\nAuthorization: Bearer {process.key}\r\n"
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(f"{head}{credentials}\r\n{body}".encode())


async def test_a_connection_that_the_gateway_itself_lost_is_an_error(
    tmp_path: Path,
) -> None:
    """A reset of another connection, while the client waits for its answer, is a 500 and is logged."""

    async def ask_store(_call: ApiCall[NoContent, NoContent]) -> None:
        raise ConnectionResetError("the store closed the connection")

    route = ApiRoute(method="GET", path="/store", access=PublicAccess(), handler=ask_store, summary="x")
    with capture_logs() as lines:
        async with (
            open_api_server(tmp_path) as api,
            TestServer(assemble(api.context, [route])) as server,
            api.mine.session.get(server.make_url("/store")) as answer,
        ):
            assert answer.status == 500
    failures = [str(line["exc_info"]) for line in lines if line["event"] == "request.failed"]
    assert failures == ["the store closed the connection"]


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("request_text", REQUESTS.values(), ids=REQUESTS.keys())
async def test_a_peer_that_leaves_is_not_an_error(
    process: GatewayProcess, request_text: str, *, reset: bool
) -> None:
    """However a peer leaves in the middle of a request, the log has no warning, error or traceback."""
    before = len(process.log)
    for _ in range(TIMES):
        await asyncio.to_thread(leave, process, request_text, reset=reset)
    async with process.http() as session:
        for _ in range(3):
            async with session.get("/accounts/me") as answer:
                assert answer.status == 200
    shown = process.log[before:]
    assert not [line for line in shown if "[error" in line or "[warning" in line or "Traceback" in line], (
        shown
    )
