"""Loopback simulators of Anthropic's and Google's streaming APIs: one tool call, then a text; or an echo.

Written from the vendors' public documents: Anthropic "Messages API" with "Streaming messages", and Google
"Gemini API: models.streamGenerateContent" with `alt=sse`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

ServerEvent = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class VendorAnswer:
    """What a request gets: a text, a call of bash, or an answer 400."""

    text: str = ""
    command: str = ""
    refusal: str = ""


VendorScript = Callable[[int, str, bool], VendorAnswer]
"""Return the answer by the number of the request, its last text, and whether that is a tool's result."""


def vendor_echo(_number: int, text: str, is_result: bool) -> VendorAnswer:
    """Play a simple model: `run: COMMAND` calls bash, a tool's result is repeated, other text comes back."""
    if is_result:
        return VendorAnswer(text=f"result: {text}")
    if text.startswith("run: "):
        return VendorAnswer(command=text.removeprefix("run: "))
    return VendorAnswer(text=f"echo: {text}")


class VendorServer:
    """The requests that a simulator got, and under which key."""

    def __init__(self, script: VendorScript | None) -> None:
        self._script = script
        self.base_url = ""
        self.keys: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    def _answer(self, name: str, text: str, is_result: bool) -> VendorAnswer:
        if self._script is not None:
            return self._script(len(self.bodies), text, is_result)
        return (
            VendorAnswer(command="ls") if len(self.bodies) == 1 else VendorAnswer(text=f"{name} says done.")
        )

    async def anthropic(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/messages`."""
        self.keys.append(request.headers.get("x-api-key", ""))
        body = await request.json()
        self.bodies.append(body)
        answer = self._answer("Anthropic", *_last_of_anthropic(body))
        if refusal := answer.refusal or _refusal_of_anthropic(body):
            problem = {"type": "invalid_request_error", "message": refusal}
            return web.json_response({"type": "error", "error": problem}, status=400)
        block = _tool_use(answer.command, len(self.bodies)) if answer.command else _text(answer.text)
        return await _send(request, _message(block))

    async def google(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1beta/models/NAME:streamGenerateContent`."""
        self.keys.append(request.headers["x-goog-api-key"])
        body = await request.json()
        self.bodies.append(body)
        answer = self._answer("Google", *_last_of_google(body))
        if answer.refusal:
            problem = {"code": 400, "status": "INVALID_ARGUMENT", "message": answer.refusal}
            return web.json_response({"error": problem}, status=400)
        call = {"functionCall": {"name": "bash", "args": {"command": answer.command}}}
        parts = [call] if answer.command else [{"text": answer.text}]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        return await _send(request, [("", {"candidates": [candidate], "usageMetadata": usage})])


def _last_of_anthropic(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the last text of a request, and whether it is a tool's result."""
    content = body["messages"][-1]["content"]
    last = {"type": "text", "text": content} if isinstance(content, str) else content[-1]
    if last["type"] == "tool_result":
        shown = last["content"]
        return shown if isinstance(shown, str) else shown[0]["text"], True
    return last["text"], False


def _refusal_of_anthropic(body: Mapping[str, Any]) -> str:
    """Return what the API says of calls in a request without tools; nothing of other requests."""
    contents = [message["content"] for message in body["messages"]]
    kinds = {block["type"] for content in contents if not isinstance(content, str) for block in content}
    if body.get("tools") or not kinds & {"tool_use", "tool_result"}:
        return ""
    return "Requests which include `tool_use` or `tool_result` blocks must define tools."


def _last_of_google(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the last text of a request, and whether it is a tool's result."""
    last = body["contents"][-1]["parts"][-1]
    if "functionResponse" in last:
        return str(last["functionResponse"]["response"]), True
    return last["text"], False


def _tool_use(command: str, number: int) -> list[ServerEvent]:
    start = {"type": "tool_use", "id": f"toolu_{number:016}", "name": "bash", "input": {}}
    written = json.dumps({"command": command})
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in (written[:5], written[5:])]
    return [_block_start(start), *(_block_delta(delta) for delta in deltas)]


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
async def vendor_server(script: VendorScript | None = None) -> AsyncIterator[VendorServer]:
    """Run both simulators on one loopback port."""
    server = VendorServer(script)
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
