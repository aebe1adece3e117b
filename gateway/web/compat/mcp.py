"""The gateway as an MCP server over streamable HTTP: one JSON answer for each request, without sessions.

Follows the protocol's transport for servers that never stream and keep no session: POST answers with JSON,
and other methods are not allowed. Newer clients that ask for `server/discover` fall back to `initialize`.
Batches of JSON-RPC are for clients of version 2025-03-26, which requires them; later versions have none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from gateway.web.compat.mcp_tools import TOOLS, argument_problem
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field
from gateway.web.http.route import ApiCall, ApiRoute, Batch, NoContent

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The supported versions; the first is offered to a client that asks for another one."""

VERSION_HEADER = "MCP-Protocol-Version"
_AFTER_INITIALIZE = frozenset({"ping", "tools/list", "tools/call"})
"""Methods of clients that have agreed on a version; before, they may name one that is not supported."""

BATCH_VERSION = "2025-03-26"
"""The version with batches; its clients send no `MCP-Protocol-Version`."""

MAX_BATCH = 20
"""Messages of one batch, which are answered at the same time."""

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

INSTRUCTIONS = (
    "Agents of a Dovecote gateway. `ask` starts a turn; its result and those of background jobs are kept, "
    "and job_status shows them later."
)


class McpMessage(BaseModel):
    """A JSON-RPC request or notification of an MCP client; other messages are accepted and ignored."""

    model_config = ConfigDict(extra="allow", frozen=True)

    jsonrpc: Literal["2.0"]
    id: StrictStr | StrictInt | None = None
    method: StrictStr | None = Field(default=None, max_length=200)
    params: dict[str, Any] = Field(default_factory=dict)


class JsonRpcError(Exception):
    """The error of a request, with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def handle_message(call: ApiCall[McpMessage | Batch, NoContent]) -> web.Response:
    """Answer a request, or each request of a batch; a notification is accepted without an answer."""
    if isinstance(call.body, Batch):
        return await _handle_batch(call, call.body)
    _check_message(call, call.body, "")
    answer = await _answer(call, call.body)
    return web.Response(status=202) if answer is None else _to_response(answer)


async def _handle_batch(call: ApiCall[Any, NoContent], batch: Batch) -> web.Response:
    """Answer the requests of a batch at the same time, each as if it were sent by itself."""
    stated = call.request.headers.get(VERSION_HEADER, BATCH_VERSION)
    _check_version(stated)
    if stated != BATCH_VERSION:
        raise invalid_field("", f"{VERSION_HEADER} {stated} has no batches: send each message by itself")
    messages = [message for message in batch.items if isinstance(message, McpMessage)]
    for place, message in enumerate(messages):
        _check_message(call, message, f"/{place}")
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_answer(_part(call, place), message, in_batch=True))
                for place, message in enumerate(messages)
            ]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    answers = [answer for task in tasks if (answer := task.result()) is not None]
    return _to_response(answers) if answers else web.Response(status=202)


def _part(call: ApiCall[Any, NoContent], place: int) -> ApiCall[Any, NoContent]:
    """Return the call of one message of a batch; its Idempotency-Key is its own, or two would be one."""
    if call.idempotency_key is None:
        return call
    own = hashlib.sha256(f"{place} {call.idempotency_key}".encode()).hexdigest()
    return replace(call, idempotency_key=own)


def _to_response(answer: Any) -> web.Response:
    return web.json_response(answer, headers={"Cache-Control": "no-store"})


def _check_message(call: ApiCall[Any, NoContent], message: McpMessage, below: str) -> None:
    """Raise HttpProblem for a request whose id is null, and for a version that is not supported."""
    if message.method is not None and message.id is None and "id" in message.model_fields_set:
        detail = "must be a string or an integer, not null; a notification has no id"
        raise invalid_field(f"{below}/id", detail)
    if message.method in _AFTER_INITIALIZE:
        _check_version(call.request.headers.get(VERSION_HEADER, PROTOCOL_VERSIONS[0]))


async def _answer(
    call: ApiCall[Any, NoContent], message: McpMessage, *, in_batch: bool = False
) -> dict[str, Any] | None:
    """Return the answer of a request; None for a notification or an answer of the client."""
    if message.id is None or message.method is None:
        return None
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
    try:
        if in_batch:
            _check_part(message.method)
        answer["result"] = await _result(call, message.method, message.params)
    except JsonRpcError as error:
        answer["error"] = {"code": error.code, "message": str(error)}
    return answer


def _check_part(method: str) -> None:
    """Raise JsonRpcError for a request that must not be in a batch."""
    if method == "initialize":
        raise JsonRpcError(INVALID_REQUEST, "initialize must not be part of a batch: send it by itself")


def _check_version(stated: str) -> None:
    """Raise HttpProblem for a version that is not supported ("Protocol Version Header" of the transport)."""
    if stated not in PROTOCOL_VERSIONS:
        supported = ", ".join(PROTOCOL_VERSIONS)
        raise HttpProblem(400, f"{VERSION_HEADER} {stated[:40]!r} is not supported: use one of {supported}")


async def _result(call: ApiCall[Any, NoContent], method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    match method:
        case "initialize":
            return _initialize(params)
        case "ping":
            return {}
        case "tools/list":
            scopes = call.principal.scopes
            return {"tools": [tool.describe(name) for name, tool in TOOLS.items() if tool.scope in scopes]}
        case "tools/call":
            return await _call_tool(call, params)
    raise JsonRpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")


def _initialize(params: Mapping[str, Any]) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    return {
        "protocolVersion": wanted if wanted in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "dovecote", "title": "Dovecote", "version": version("dovecote")},
        "instructions": INSTRUCTIONS,
    }


async def _call_tool(call: ApiCall[Any, NoContent], params: Mapping[str, Any]) -> dict[str, Any]:
    name, args = params.get("name"), params.get("arguments") or {}
    tool = TOOLS.get(name) if isinstance(name, str) else None
    if tool is None or tool.scope not in call.principal.scopes:
        raise JsonRpcError(INVALID_PARAMS, f"there is no tool {str(name)[:80]!r} for this key")
    if not isinstance(args, Mapping):
        raise JsonRpcError(INVALID_PARAMS, "arguments must be an object")
    try:
        result = (await tool.call(call, args)).model_dump(mode="json", by_alias=True)
    except ValidationError as error:
        return _failure(f"wrong arguments: {argument_problem(error, args, tool.arguments)}")
    except HttpProblem as problem:
        return _failure(f"{problem.status}: {problem.detail}")
    text = json.dumps(result, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": result, "isError": False}


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


ROUTES = (
    ApiRoute(
        method="POST",
        path="/mcp",
        access=KeyAccess("read"),
        handler=handle_message,
        summary="speak to the gateway as an MCP server",
        request_model=McpMessage,
        lenient=True,
        batch=MAX_BATCH,
        response_model=None,
        media_type="application/json",
        empty_responses={202: "a notification or a response was accepted"},
        tag="mcp",
    ),
)
"""The routes of this module."""
