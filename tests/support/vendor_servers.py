"""Loopback simulators of Anthropic's and Google's streaming APIs: one tool call, then a text.

Written from the vendors' public documents: Anthropic "Messages API" with "Streaming messages", and Google
"Gemini API: models.streamGenerateContent" with `alt=sse`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

ServerEvent = tuple[str, Mapping[str, Any]]


class VendorServer:
    """The requests that a simulator got, and under which key."""

    def __init__(self) -> None:
        self.base_url = ""
        self.keys: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def anthropic(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/messages`."""
        self.keys.append(request.headers["Authorization"].removeprefix("Bearer "))
        self.bodies.append(await request.json())
        block = _tool_use() if len(self.bodies) == 1 else _text("Anthropic says done.")
        return await _send(request, _message(block))

    async def google(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1beta/models/NAME:streamGenerateContent`."""
        self.keys.append(request.headers["x-goog-api-key"])
        self.bodies.append(await request.json())
        call = {"functionCall": {"name": "bash", "args": {"command": "ls"}}}
        parts = [call] if len(self.bodies) == 1 else [{"text": "Google says done."}]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        return await _send(request, [("", {"candidates": [candidate], "usageMetadata": usage})])


def _tool_use() -> list[ServerEvent]:
    start = {"type": "tool_use", "id": "toolu_01", "name": "bash", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"command": "ls"}'}
    return [_block_start(start), _block_delta(delta)]


def _text(text: str) -> list[ServerEvent]:
    half = len(text) // 2
    deltas = [{"type": "text_delta", "text": piece} for piece in (text[:half], text[half:])]
    return [_block_start({"type": "text", "text": ""}), *(_block_delta(delta) for delta in deltas)]


def _block_start(block: Mapping[str, Any]) -> ServerEvent:
    return "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}


def _block_delta(delta: Mapping[str, Any]) -> ServerEvent:
    return "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}


def _message(block: list[ServerEvent]) -> Iterator[ServerEvent]:
    message: dict[str, Any] = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-loopback",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    yield "message_start", {"type": "message_start", "message": message}
    yield from block
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}
    yield "message_stop", {"type": "message_stop"}


async def _send(
    request: web.Request, events: Iterator[ServerEvent] | list[ServerEvent]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for name, content in events:
        head = f"event: {name}\n" if name else ""
        await response.write(f"{head}data: {json.dumps(content)}\n\n".encode())
    return response


@asynccontextmanager
async def vendor_server() -> AsyncIterator[VendorServer]:
    """Run both simulators on one loopback port."""
    server = VendorServer()
    app = web.Application()
    app.router.add_post("/v1/messages", server.anthropic)
    app.router.add_post("/v1beta/models/{call}", server.google)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
