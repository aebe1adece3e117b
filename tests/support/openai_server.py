"""A loopback server that speaks the chat-completions part of OpenAI's HTTP API, streaming included.

Written from OpenAI's published API reference ("Create chat completion", "Streaming", "Error codes"). A
script decides the answer to each request: a list of `ScriptedTurn`s in order, or a function of the request
body. It counts requests, and clients that disconnected before their answer was complete.

Also a process of its own, for measurements: `python tests/support/openai_server.py --port 9901`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import web

Fault = Literal[
    "429", "500", "401", "overflow", "blind", "choiceless", "formatless", "hang", "stall", "cut", "garbage"
]
"""`hang` never answers, `stall` stops after the text, `cut` drops the connection after it."""

ERRORS: Mapping[str, tuple[int, str, str]] = {
    "429": (429, "rate_limit_exceeded", "Rate limit reached for requests"),
    "500": (500, "server_error", "The server had an error while processing your request"),
    "401": (401, "invalid_api_key", "Incorrect API key provided"),
    "blind": (
        400,
        "invalid_request_error",
        "Invalid content type. image_url is only supported by certain models.",
    ),
    "choiceless": (400, "invalid_request_error", "Thinking mode does not support this tool_choice"),
    "formatless": (400, "invalid_request_error", "This response_format type is unavailable now"),
    "overflow": (400, "context_length_exceeded", "This model's maximum context length is 16384 tokens"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the scripted model makes; `raw` replaces the JSON of `args`, for broken arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """What one request gets: text in `pieces`, then calls, or a fault.

    The answer starts after `delay` seconds and once `release` is set.
    """

    text: str = ""
    calls: Sequence[ToolCall] = ()
    fault: Fault | None = None
    pieces: int = 4
    delay: float = 0.0
    release: asyncio.Event | None = None
    usage: tuple[int, int] = (10, 5)
    finish: str = "stop"
    refusal: str = ""


Script = Sequence[ScriptedTurn] | Callable[[dict[str, Any]], ScriptedTurn]


class OpenAIServer(AbstractAsyncContextManager["OpenAIServer"]):
    """The running server; `bodies` holds every request, `disconnects` counts clients that left early."""

    def __init__(self, script: Script, *, port: int = 0) -> None:
        self._script = script
        self._port = port
        self._calls = 0
        self._runner: web.AppRunner | None = None
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.disconnects = 0
        self._connections: set[object] = set()
        self.asked = asyncio.Event()
        self.streaming = asyncio.Event()
        self.left = asyncio.Event()

    @property
    def requests(self) -> int:
        """Return how many completions were asked for."""
        return len(self.bodies)

    @property
    def connections(self) -> int:
        """Return over how many connections completions were asked for."""
        return len(self._connections)

    @property
    def base_url(self) -> str:
        """Return the address to configure as `base_url`."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "loopback", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self._connections.add(request.transport)
        self.asked.set()
        turn = self._next(body)
        try:
            return await self._answer(request, body, turn)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            self.left.set()
            raise

    def _next(self, body: dict[str, Any]) -> ScriptedTurn:
        if callable(self._script):
            return self._script(body)
        if self.requests > len(self._script):
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": "the script is over"}}))
        return self._script[self.requests - 1]

    async def _answer(
        self, request: web.Request, body: dict[str, Any], turn: ScriptedTurn
    ) -> web.StreamResponse:
        if turn.delay:
            await asyncio.sleep(turn.delay)
        if turn.release is not None:
            await turn.release.wait()
        if turn.fault == "hang":
            await asyncio.Event().wait()
        if turn.fault is not None and turn.fault in ERRORS:
            return _refuse(turn.fault)
        if not body.get("stream"):
            return web.json_response(self._full_response(body, turn))
        return await self._stream(request, body, turn)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], turn: ScriptedTurn
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if turn.fault == "garbage":
            await response.write(b"data: {this is not json\n\n")
            return response
        async for chunk in self._chunks(body, turn):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.streaming.set()
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _chunks(self, body: dict[str, Any], turn: ScriptedTurn) -> AsyncIterator[dict[str, Any]]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return self._envelope(body, "chat.completion.chunk") | {"choices": [choice]}

        yield chunk({"role": "assistant", "content": ""})
        for delta in _said(turn):
            yield chunk(delta)
        if turn.fault == "stall":
            await asyncio.Event().wait()
        if turn.fault == "cut":
            raise ConnectionResetError("cut by the script")
        for index, call in enumerate(self._numbered(turn)):
            name_only = {"name": call["function"]["name"], "arguments": ""}
            yield chunk({"tool_calls": [call | {"index": index, "function": name_only}]})
            for piece in _split(call["function"]["arguments"], 2):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, "tool_calls" if turn.calls else turn.finish)
        if body.get("stream_options", {}).get("include_usage"):
            yield self._envelope(body, "chat.completion.chunk") | {"choices": [], "usage": _usage(turn)}

    def _full_response(self, body: dict[str, Any], turn: ScriptedTurn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
        if turn.calls:
            message["tool_calls"] = list(self._numbered(turn))
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if turn.calls else turn.finish,
        }
        return self._envelope(body, "chat.completion") | {"choices": [choice], "usage": _usage(turn)}

    def _envelope(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.requests}",
            "object": kind,
            "created": 1,
            "model": body.get("model", ""),
        }

    def _numbered(self, turn: ScriptedTurn) -> Iterator[dict[str, Any]]:
        for call in turn.calls:
            self._calls += 1
            arguments = call.raw if call.raw is not None else json.dumps(dict(call.args))
            identity = call.id if call.id is not None else f"call_{self._calls}"
            yield {
                "id": identity,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments},
            }


def _refuse(fault: str) -> web.Response:
    status, code, message = ERRORS[fault]
    error = {"message": message, "type": code, "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


def _usage(turn: ScriptedTurn) -> dict[str, int]:
    asked, answered = turn.usage
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _said(turn: ScriptedTurn) -> Iterator[dict[str, str]]:
    yield from ({"content": piece} for piece in _split(turn.text, turn.pieces))
    yield from ({"refusal": piece} for piece in _split(turn.refusal, turn.pieces))


def _split(text: str, pieces: int) -> Iterator[str]:
    size = max(1, -(-len(text) // max(1, pieces)))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def last_text(body: dict[str, Any]) -> str:
    """Return the text of a request's last message, whatever its role."""
    content = body["messages"][-1].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def images_of(body: dict[str, Any]) -> list[str]:
    """Return the addresses of the images in a request's messages, in order."""
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]


def spoken(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return role and content of a request's messages, or the arguments of calls; no instructions."""
    found = []
    for message in body["messages"]:
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        found.append((message["role"], calls or message["content"]))
    return [one for one in found if one[0] not in {"system", "developer"}]


def echo(body: dict[str, Any]) -> ScriptedTurn:
    """Play a simple model: `run: COMMAND` calls bash, a tool's result is repeated, other text comes back.

    `cut: REASON` ends the answer with this finish reason.
    """
    text = last_text(body)
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text=f"result: {text}", pieces=1)
    if text.startswith("run: "):
        return ScriptedTurn(calls=[ToolCall(name="bash", args={"command": text.removeprefix("run: ")})])
    if text.startswith("cut: "):
        return ScriptedTurn(text="This is long and", finish=text.removeprefix("cut: "))
    return ScriptedTurn(text=f"echo: {text}", pieces=1)


async def _serve(port: int, delay: float, pieces: int) -> None:
    def script(body: dict[str, Any]) -> ScriptedTurn:
        turn = echo(body)
        text = turn.text if pieces == 1 else f"{turn.text} {'words ' * pieces}"
        return replace(turn, text=text, pieces=pieces, delay=delay)

    async with OpenAIServer(script, port=port) as server:
        print(f"ready {server.base_url}", flush=True)  # noqa: T201 - a process says where it listens
        await asyncio.Event().wait()


def main() -> None:
    """Serve the echo script until killed; prints `ready URL` once it listens."""
    parser = argparse.ArgumentParser(description="A loopback OpenAI-compatible model that echoes.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--pieces", type=int, default=1, help="pieces of each answer; more make it longer")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.port, arguments.delay, arguments.pieces))


if __name__ == "__main__":
    main()
