"""The simulated Telegram on a loopback port: the Bot API, the files, and a control interface.

POST|GET /bot<token>/<method>      the Bot API
GET      /file/bot<token>/<path>   files
POST     /_control/<action>        user actions and faults: say, edit, press, react, send_file, send_album,
                                   group, topic, close_topic, reopen_topic, delete_topic, restrict,
                                   migrate, block, kick, readmit, push, fail, cut, well, limit, forget;
                                   see Simulator
GET      /_control/messages[?chat=] the bot's messages
GET      /_control/wait?count=&chat=&seconds=   the same, once there are so many
GET      /_control/calls[?after=]  the calls from that number on: method and arguments
GET      /_control/state           visible drafts, the menu, the webhook, the number of rate-limited calls

The control interface, like the simulator, is for loopback only; `/control` is another name for it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

from channels.telegram.simulator.arguments import Arguments, read_arguments
from channels.telegram.simulator.failure import ApiFailure, ConnectionCut
from channels.telegram.simulator.faults import Faults
from channels.telegram.simulator.methods import Methods
from channels.telegram.simulator.world import World

BODY_LIMIT = 64_000_000
ControlAction = Callable[..., Awaitable[Any]]


class ControlTarget(Protocol):
    """The simulator that the control interface drives."""

    actions: dict[str, ControlAction]

    async def wait_for_messages(self, count: int, *, chat: int | None, seconds: float) -> list[Any]:
        """Wait until the bot has sent `count` messages."""

    def messages_json(self, chat: int | None) -> list[dict[str, Any]]:
        """Return the bot's messages as JSON."""

    def state(self) -> dict[str, Any]:
        """Return the rest of the visible state as JSON."""


class Server:
    """Answers HTTP requests for one bot."""

    def __init__(
        self, token: str, world: World, methods: Methods, faults: Faults, control: ControlTarget
    ) -> None:
        self._token = token
        self._world = world
        self._methods = methods
        self._faults = faults
        self._control = control
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answered_methods: deque[str] = deque(maxlen=100_000)

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_route("*", "/bot{token}/{method}", self._answer_call)
        application.router.add_get("/file/bot{token}/{path:.+}", self._answer_file)
        for control in ("/_control", "/control"):
            application.router.add_get(f"{control}/messages", self._answer_messages)
            application.router.add_get(f"{control}/wait", self._answer_wait)
            application.router.add_get(f"{control}/calls", self._answer_calls)
            application.router.add_get(f"{control}/state", self._answer_state)
            application.router.add_post(f"{control}/{{act}}", self._answer_action)
        return application

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
        try:
            self._check_token(request)
            result = await self._call_method(request)
        except ApiFailure as failure:
            return web.json_response(failure.answer, status=failure.status)
        except ConnectionCut:
            return _hang_up(request)
        finally:
            self.answered_methods.append(request.match_info["method"])
            await self._world.notify_changed()
        return web.json_response({"ok": True, "result": result})

    async def _call_method(self, request: web.Request) -> Any:
        arguments = await read_arguments(request)
        name = request.match_info["method"]
        method = name.lower()
        chat, thread = _id_of(arguments, "chat_id"), _id_of(arguments, "message_thread_id")
        self.calls.append((name, arguments.as_json))
        fault = await self._faults.apply_before(method, chat, thread)
        result = await self._methods.call(method, arguments)
        await self._world.notify_changed()
        await self._faults.apply_after(fault)
        return result

    def _check_token(self, request: web.Request) -> None:
        token = request.match_info["token"]
        if token == self._token:
            return
        if token.partition(":")[0].isdecimal() and ":" in token:
            raise ApiFailure(401, "Unauthorized")
        raise ApiFailure(404, "Not Found")

    async def _answer_file(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["token"] != self._token:
            return web.json_response(ApiFailure(401, "Unauthorized").answer, status=401)
        found = [
            content for path, content in self._world.files.values() if path == request.match_info["path"]
        ]
        if not found:
            return web.json_response(ApiFailure(404, "Not Found").answer, status=404)
        try:
            fault = await self._faults.apply_before("file", None)
        except ConnectionCut:
            return _hang_up(request)
        if fault is not None and fault.action == "cut_after":
            return await _send_half(request, found[0])
        return web.Response(body=found[0], content_type="application/octet-stream")

    async def _answer_action(self, request: web.Request) -> web.StreamResponse:
        act = self._control.actions.get(request.match_info["act"])
        if act is None:
            return web.json_response(
                {"error": "no such act", "acts": sorted(self._control.actions)}, status=404
            )
        try:
            given = json.loads(await request.text() or "{}")
            return web.json_response({"result": await act(**given)})
        except (TypeError, ValueError, KeyError, ApiFailure) as error:
            return web.json_response({"error": str(error)}, status=400)

    async def _answer_messages(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._control.messages_json(_number(request, "chat")))

    async def _answer_calls(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.calls[_number(request, "after") or 0 :])

    async def _answer_state(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._control.state())

    async def _answer_wait(self, request: web.Request) -> web.StreamResponse:
        chat = _number(request, "chat")
        seconds = float(request.query.get("seconds", "10"))
        try:
            await self._control.wait_for_messages(_number(request, "count") or 1, chat=chat, seconds=seconds)
        except TimeoutError:
            return web.json_response(self._control.messages_json(chat), status=408)
        return web.json_response(self._control.messages_json(chat))


def _id_of(arguments: Arguments, name: str) -> int | None:
    try:
        return arguments.number(name)
    except ApiFailure:
        return None


def _number(request: web.Request, name: str) -> int | None:
    value = request.query.get(name)
    return int(value) if value else None


def _hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _send_half(request: web.Request, content: bytes) -> web.StreamResponse:
    """Send half of a file and close the connection."""
    response = web.StreamResponse(headers={"Content-Length": str(len(content))})
    await response.prepare(request)
    await response.write(content[: len(content) // 2])
    await asyncio.sleep(0)
    if request.transport is not None:
        request.transport.abort()
    return response
