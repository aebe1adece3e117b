"""Frames of a WebSocket are counted like requests, by the key's rate limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp

from gateway.web.http.rate_limit import RequestRateLimiter
from stream_server import READ_ONLY, StreamServer


async def send_and_receive(socket: aiohttp.ClientWebSocketResponse, frame: Any) -> dict[str, Any]:
    """Send a frame and return the answer."""
    await socket.send_json(frame)
    return dict(await socket.receive_json(timeout=60))


async def test_frames_count_for_the_rate_limit_whatever_becomes_of_them(server: StreamServer) -> None:
    """Valid, refused and malformed fields are counted alike; then frames are refused, and nothing is sent."""
    server.rate_limiter = RequestRateLimiter(3)
    async with server.http() as session, session.ws_connect("/ws") as socket:
        await send_and_receive(socket, {"type": "ping"})
        await send_and_receive(socket, {"type": "send", "id": "1", "text": "too much"})
        await send_and_receive(socket, {"type": "send", "id": "2", "text": ""})
        frame = await send_and_receive(socket, {"type": "send", "id": "3", "text": "hello"})
        assert (frame["type"], frame["code"]) == ("error", "too_many")
        assert "requests and frames per minute" in frame["detail"]
        assert frame["retry_after"] > 0
    assert server.sent == []


async def test_a_flood_of_frames_ends_the_connection(server: StreamServer) -> None:
    """A client that goes on after refusals is closed with 4429; another key is served."""
    server.rate_limiter = RequestRateLimiter(5)
    async with (
        server.http() as session,
        server.http(READ_ONLY) as reading,
        session.ws_connect("/ws") as socket,
        reading.ws_connect("/ws") as other,
    ):
        for number in range(100):
            with suppress(ConnectionError):
                await socket.send_json({"type": "send", "id": str(number), "text": "hello"})
        async with asyncio.timeout(60):
            async for _ in socket:
                pass
        assert socket.close_code == 4429
        assert (await send_and_receive(other, {"type": "ping"}))["type"] == "pong"
    assert len(server.sent) == 5
