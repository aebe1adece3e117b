"""OpenAPI documents as tools of an agent: which operations are offered, sent as described, or refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from delivery.database.engine import Database
from egress.policy import EgressPolicy
from gateway.agents.port import PendingToolCall
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.tools.executor import ToolExecutor
from gateway.tools.external.openapi_tools import OpenApiTools
from gateway.tools.external_tools import no_external_tools
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker

SECRET = "a-canary-of-an-api-key"
LOFT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Loft", "version": "1"},
    "servers": [{"url": "https://loft.example.org/v1"}],
    "paths": {
        "/birds/{bird}": {
            "parameters": [{"$ref": "#/components/parameters/Bird"}],
            "get": {
                "operationId": "getBird",
                "summary": "Find a bird.",
                "parameters": [
                    {"name": "tag", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "X-Key", "in": "header", "schema": {"type": "string"}, "required": True},
                ],
                "responses": {},
            },
            "put": {
                "operationId": "putBird",
                "parameters": [{"name": "dry-run", "in": "query", "schema": {"type": "boolean"}}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Bird"}}},
                },
                "responses": {},
            },
        },
        "/photos": {
            "post": {
                "operationId": "addPhoto",
                "requestBody": {"required": True, "content": {"multipart/form-data": {}}},
                "responses": {},
            }
        },
        "/session": {
            "get": {
                "operationId": "getSession",
                "parameters": [
                    {"name": "sid", "in": "cookie", "required": True, "schema": {"type": "string"}}
                ],
                "responses": {},
            }
        },
    },
    "components": {
        "parameters": {
            "Bird": {"name": "bird", "in": "path", "required": True, "schema": {"type": "string"}},
        },
        "schemas": {
            "Bird": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "example": "Ada"},
                    "parents": {"type": "array", "items": {"$ref": "#/components/schemas/Bird"}},
                },
            },
        },
    },
}
USABLE = ["getBird", "put*"]


@dataclass(kw_only=True)
class OpenApiService:
    """A server on loopback that repeats what it gets."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Record the request."""
        body = await request.json() if request.can_read_body else None
        headers = {name: request.headers.get(name) for name in ("X-Key", "X-Trace")}
        self.seen.append({"call": f"{request.method} {request.raw_path}", "body": body, **headers})
        return web.json_response({"found": True})


@pytest.fixture
async def service() -> AsyncIterator[OpenApiService]:
    """A running server."""
    service = OpenApiService()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    yield service
    await runner.cleanup()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


class DocumentAgent:
    """Changes the agent's record, and opens its tools as a turn does."""

    def __init__(self, harness: TurnWorkerHarness, *, allow: str = "127.0.0.0/8") -> None:
        self.harness = harness
        self.records = Records(harness.vault, EgressPolicy.parse(allow))

    async def configure(self, document: Any = None, **config: Any) -> None:
        """Give the agent a document, whose calls need no approval unless the test says so."""
        text = document if isinstance(document, str) else json.dumps(document or LOFT)
        loft = {"document": text, "approval": "never", "operations": USABLE, **config}
        async with self.harness.database.begin() as connection:
            saved = await self.records.update(
                connection, self.harness.agent, patch={"tools": {"openapi": {"loft": loft}}}
            )
        self.harness.agent = saved.record

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[ToolExecutor]:
        """Open the tools of a turn."""
        opened = OpenApiTools(self.records, no_external_tools).open
        async with self.harness.open_tools(opened) as (tools, _external):
            yield tools


async def test_operations_are_offered_with_prefix_filter_and_plain_schemas(
    harness: TurnWorkerHarness, service: OpenApiService
) -> None:
    """References are replaced, one to itself ends, and a header of the record is no argument."""
    agent = DocumentAgent(harness)
    await agent.configure(url=service.url, headers={"X-Key": SECRET})
    async with agent.tools() as tools:
        offered = {spec.name: spec for spec in tools.list() if spec.name.startswith("loft_")}
    assert set(offered) == {"loft_getBird", "loft_putBird"}
    assert offered["loft_getBird"].description == "Find a bird."
    assert set(offered["loft_getBird"].schema["properties"]) == {"bird", "tag", "X-Trace"}
    assert offered["loft_getBird"].schema["required"] == ["bird"]
    body = offered["loft_putBird"].schema["properties"]["body"]
    assert body["properties"]["name"] == {"type": "string"}
    assert body["properties"]["parents"]["items"] == {}
    await agent.configure(url=service.url, prefix="", operations=["getBird"])
    async with agent.tools() as tools:
        assert "getBird" in {spec.name for spec in tools.list()}


async def test_arguments_become_path_query_headers_and_body(
    harness: TurnWorkerHarness, service: OpenApiService
) -> None:
    """Each goes where the document says, escaped; the record's secret header is sent."""
    agent = DocumentAgent(harness)
    await agent.configure(url=service.url, headers={"X-Key": SECRET})
    async with agent.tools() as tools:
        found = await tools.call(
            "loft_getBird", {"bird": "a/b?c", "tag": ["x", "y&z"], "X-Trace": "t1"}, call="call-1"
        )
        changed = await tools.call(
            "loft_putBird", {"bird": "ada", "dry-run": True, "body": {"name": "Ada"}}, call="call-2"
        )
    assert (found.ok, changed.ok) == (True, True)
    assert service.seen == [
        {
            "call": "GET /api/birds/a%2Fb%3Fc?tag=x&tag=y%26z",
            "body": None,
            "X-Key": SECRET,
            "X-Trace": "t1",
        },
        {
            "call": "PUT /api/birds/ada?dry-run=true",
            "body": {"name": "Ada"},
            "X-Key": SECRET,
            "X-Trace": None,
        },
    ]


@pytest.mark.parametrize(
    ("tool", "args", "problem"),
    [
        ("loft_getBird", {}, "bird is missing"),
        ("loft_getBird", {"bird": ".."}, "bird must be a text or a number"),
        ("loft_getBird", {"bird": "a", "wing": 1}, "no argument 'wing'"),
        ("loft_getBird", {"bird": "a", "X-Trace": "a\r\nHost: b"}, "visible ASCII"),
        ("loft_putBird", {"bird": "a"}, "body is missing"),
    ],
)
async def test_wrong_arguments_are_not_sent(
    harness: TurnWorkerHarness, service: OpenApiService, tool: str, args: dict[str, Any], problem: str
) -> None:
    """The model learns which argument is wrong."""
    agent = DocumentAgent(harness)
    await agent.configure(url=service.url, headers={"X-Key": SECRET})
    async with agent.tools() as tools:
        result = await tools.call(tool, args, call="call-1")
    assert not result.ok
    assert problem in result.content
    assert service.seen == []


async def test_a_question_shows_the_request_and_follows_the_rule(
    harness: TurnWorkerHarness, service: OpenApiService
) -> None:
    """An approval names method and address; without one nothing is sent."""
    agent = DocumentAgent(harness)
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode="bypass")
    await agent.configure(url=service.url, approval="always")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    args = {"bird": "ada", "X-Key": "k"}
    async with agent.tools() as tools:
        assert await tools.needs_approval("loft_getBird", args, call="call-1")
        call = PendingToolCall(id="call-1", name="loft_getBird", args=args)
        assert tools.call_address(call) == f"GET {service.url}/birds/ada"
        assert not (await tools.call("loft_getBird", args, call="call-1")).ok
    assert service.seen == []


async def test_a_private_server_is_refused_and_secrets_are_encrypted(harness: TurnWorkerHarness) -> None:
    """The server of the document is checked as a given one is."""
    guarded = DocumentAgent(harness, allow="")
    for config in (
        {"url": "http://127.0.0.1/"},
        {"document": {**LOFT, "servers": [{"url": "http://10.0.0.1"}]}},
    ):
        with pytest.raises(InvalidRecord, match="/config/tools/openapi/loft/url"):
            await guarded.configure(**config)
    await guarded.configure(headers={"X-Key": SECRET})
    assert SECRET not in f"{harness.agent.config}{harness.agent.encrypted_secrets}"
    (saved,) = guarded.records.openapi_tools(harness.agent).values()
    assert saved.headers["X-Key"].get_secret_value() == SECRET


def _with(path: str, operation: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {**LOFT, **rest, "paths": {path: {"get": {"operationId": "one", **operation}}}}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"document": "openapi: 3.1.0"}, "as JSON text"),
        ({"document": {"swagger": "2.0"}}, "version 3.0 or 3.1"),
        ({"document": {**LOFT, "paths": {}}}, "has no operation"),
        ({"document": {**LOFT, "servers": []}}, "no absolute server"),
        ({"operations": ["addPhoto"]}, "'addPhoto': its body is multipart/form-data"),
        ({"operations": ["getSession"]}, "'getSession': the parameter 'sid': parameters in cookie"),
        ({"operations": ["eggs"]}, "the document has none of them"),
        ({"operations": None}, "'addPhoto'"),
        ({"document": _with("@evil.example/", {})}, "must begin with /"),
        ({"document": _with("/{bird}", {})}, "the path names 'bird'"),
        (
            {"document": _with("/", {"requestBody": {"$ref": "https://elsewhere.example/body"}})},
            "leads out of the document",
        ),
        (
            {
                "document": _with(
                    "/",
                    {"security": [{"key": []}]},
                    components={"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "k"}}},
                )
            },
            "use a header",
        ),
        ({"document": json.dumps(LOFT) + " " * 500_000}, "at most 500000"),
    ],
)
async def test_what_is_not_supported_is_refused_when_it_is_saved(
    harness: TurnWorkerHarness, config: dict[str, Any], problem: str
) -> None:
    """The error names the document and the operation."""
    only = {"operations": ["one", "getBird"]} if "document" in config else {}
    with pytest.raises(InvalidRecord, match="/config/tools/openapi/loft") as refused:
        await DocumentAgent(harness).configure(**{**only, **config})
    assert problem in str([one.detail for one in refused.value.problems])
