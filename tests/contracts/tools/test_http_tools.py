"""HTTP requests as tools of an agent: built from arguments, guarded, bounded, and shown in questions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from delivery.database.engine import Database
from egress.policy import EgressPolicy
from gateway.agents.port import PendingToolCall
from gateway.conversations.approval_question import CallTarget
from gateway.conversations.approvals import request
from gateway.conversations.call_binding import CallTargets, with_addresses
from gateway.conversations.outdated_approvals import list_outdated, list_unused
from gateway.conversations.questions import render_request
from gateway.environments.fingerprint import fingerprint_all
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.store.turns import approvals
from gateway.store.turns.turns import Turn
from gateway.tools.executor import ToolExecutor
from gateway.tools.external.http_tools import HttpTools
from gateway.tools.external_tools import no_external_tools
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker

SECRET = "a-canary-of-a-bearer-token"
LOOPBACK = "127.0.0.0/8"
BIRD = {"type": "object", "properties": {"bird": {"type": "string"}, "far": {"type": "integer"}}}


@dataclass(kw_only=True)
class HttpToolService:
    """A server on loopback that repeats what it gets."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Repeat the request; some paths redirect, fail or answer at length."""
        body = await request.json() if request.can_read_body else None
        self.seen.append(
            {"path": request.raw_path, "body": body, "token": request.headers.get("Authorization")}
        )
        if request.path == "/moved":
            raise web.HTTPFound("/elsewhere")
        if request.path == "/charset":
            return web.Response(body="grün".encode(), headers={"Content-Type": request.query["type"]})
        if request.path == "/long":
            return web.Response(text="x" * 100_000)
        status = 404 if request.path == "/missing" else 200
        return web.json_response({"path": request.raw_path, "body": body}, status=status)


@pytest.fixture
async def service() -> AsyncIterator[HttpToolService]:
    """A running server."""
    service = HttpToolService()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


class HttpAgent:
    """Changes the agent's record, and opens its tools as a turn does."""

    def __init__(self, harness: TurnWorkerHarness, *, allow: str = LOOPBACK) -> None:
        self.harness = harness
        self.records = Records(harness.vault, EgressPolicy.parse(allow))

    async def configure(self, **tools: Any) -> None:
        """Give the agent these HTTP tools."""
        async with self.harness.database.begin() as connection:
            saved = await self.records.update(
                connection, self.harness.agent, patch={"tools": {"http": tools}}
            )
        self.harness.agent = saved.record

    @asynccontextmanager
    async def tools(self, turn: Turn | None = None) -> AsyncIterator[ToolExecutor]:
        """Open the tools of a turn."""
        opened = HttpTools(self.records, no_external_tools).open
        async with self.harness.open_tools(opened, turn) as (tools, _external):
            yield tools


def http_tool(url: str, **changes: Any) -> dict[str, Any]:
    """Return the config of a tool that needs no approval."""
    return {"url": url, "description": "Look.", "parameters": BIRD, "approval": "never", **changes}


async def test_arguments_become_path_query_and_body(
    harness: TurnWorkerHarness, service: HttpToolService
) -> None:
    """A named part of the path is escaped; the rest is the query of a GET and the body of a POST."""
    agent = HttpAgent(harness)
    headers = {"Authorization": f"Bearer {SECRET}"}
    await agent.configure(
        look=http_tool(f"{service.url}/birds/{{bird}}", headers=headers),
        send=http_tool(f"{service.url}/birds?v=1", method="POST"),
    )
    async with agent.tools() as tools:
        (spec,) = [one for one in tools.list() if one.name == "look"]
        assert spec.schema["required"] == ["bird"]
        looked = await tools.call("look", {"bird": "a/b?c", "far": 3}, call="call-1")
        sent = await tools.call("send", {"bird": "ada", "far": 3}, call="call-2")
    assert looked.ok
    assert sent.ok
    assert service.seen == [
        {"path": "/birds/a%2Fb%3Fc?far=3", "body": None, "token": f"Bearer {SECRET}"},
        {"path": "/birds?v=1", "body": {"bird": "ada", "far": 3}, "token": None},
    ]


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        ({}, "bird is missing"),
        ({"bird": ".."}, "neither empty nor"),
        ({"bird": "ada", "wing": 1}, "no argument 'wing'"),
        ({"bird": ["ada"]}, "must be a text or a number"),
    ],
)
async def test_wrong_arguments_are_not_sent(
    harness: TurnWorkerHarness, service: HttpToolService, args: dict[str, Any], reported: str
) -> None:
    """The model reads what is wrong; no path outside the URL's own can be reached."""
    agent = HttpAgent(harness)
    await agent.configure(look=http_tool(f"{service.url}/birds/{{bird}}"))
    async with agent.tools() as tools:
        result = await tools.call("look", args, call="call-1")
    assert not result.ok
    assert reported in result.content
    assert service.seen == []


async def test_failures_are_results(harness: TurnWorkerHarness, service: HttpToolService) -> None:
    """Statuses, redirects, long answers and refused addresses become results within the output limit."""
    agent = HttpAgent(harness)
    paths = ("missing", "moved", "long")
    await agent.configure(**{path: http_tool(f"{service.url}/{path}") for path in paths})
    async with agent.tools() as tools:
        missing, moved, long = [await tools.call(one, {}, call=one) for one in paths]
    assert (missing.ok, missing.detail["status"]) == (False, 404)
    assert moved.detail["status"] == 302
    assert long.detail["truncated"]
    assert len(long.content) < 100_000
    assert [one["path"] for one in service.seen] == ["/missing", "/moved", "/long"]
    guarded = HttpAgent(harness, allow="")
    async with guarded.tools() as tools:
        refused = await tools.call("missing", {}, call="call-4")
    assert "refused" in refused.content
    assert len(service.seen) == 3


@pytest.mark.parametrize("stated", ["text/plain", "text/html; charset=hex", "text/html; charset=idna", "x"])
async def test_answers_of_any_charset_are_text(
    harness: TurnWorkerHarness, service: HttpToolService, stated: str
) -> None:
    """A missing charset, and one that is no charset of a text, count as UTF-8."""
    agent = HttpAgent(harness)
    await agent.configure(look=http_tool(f"{service.url}/charset?type={quote(stated)}"))
    async with agent.tools() as tools:
        result = await tools.call("look", {}, call="call-1")
    assert result.content == "HTTP 200\ngrün"


async def test_the_question_shows_the_address(harness: TurnWorkerHarness, service: HttpToolService) -> None:
    """A call follows the sandbox's mode; a person sees the method and the whole address."""
    agent = HttpAgent(harness)
    await agent.configure(look=http_tool(f"{service.url}/birds/{{bird}}", approval="default"))
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode="ask")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    call = PendingToolCall(id="call-1", name="look", args={"bird": "ada", "far": 3})
    async with agent.tools() as tools:
        assert await tools.needs_approval("look", call.args, call=call.id)
        find = with_addresses(lambda _call: CallTarget(), tools.call_address)
        question = render_request(call, find(call), None)
        other = PendingToolCall(id="call-2", name="bash", args={"command": "ls"})
        assert tools.call_address(other) is None
    assert f'address: "GET {service.url}/birds/ada?far=3"' in question


async def test_an_approval_ends_when_the_address_changes(
    harness: TurnWorkerHarness, service: HttpToolService
) -> None:
    """An approved request is not sent to another address; a new approval is needed, and asked for."""
    agent = HttpAgent(harness)
    await agent.configure(look=http_tool(f"{service.url}/birds/{{bird}}", approval="always"))
    turn = await harness.add_turn(running=True)
    call = PendingToolCall(id="call-1", name="look", args={"bird": "ada"})
    async with agent.tools(turn) as tools:
        targets = with_addresses(lambda _call: CallTarget(), tools.call_address, tools.call_definition)
        await _approve(harness, turn, call, targets)
        assert not await tools.needs_approval("look", call.args, call=call.id)
    await agent.configure(look=http_tool(f"{service.url}/others/{{bird}}", approval="always"))
    async with agent.tools(turn) as tools:
        assert await tools.needs_approval("look", call.args, call=call.id)
        refused = await tools.call("look", call.args, call=call.id)
        targets = with_addresses(lambda _call: CallTarget(), tools.call_address, tools.call_definition)
        async with harness.transactions.begin("test") as tx:
            decided = await approvals.list_for_turn(tx.connection, turn.id)
            fingerprint = await _fingerprint(harness, turn)
            unused = await list_unused(tx.connection, decided)
            outdated = list_outdated(unused, fingerprint, targets)
    assert not refused.ok
    assert service.seen == []
    assert [one.call for one in outdated] == [call.id]


async def _fingerprint(harness: TurnWorkerHarness, turn: Turn) -> str:
    context = await harness.tool_context(turn)
    return fingerprint_all(context.environments, context.environment)


async def _approve(
    harness: TurnWorkerHarness, turn: Turn, call: PendingToolCall, targets: CallTargets
) -> None:
    async with harness.transactions.begin("test") as tx:
        await request(tx, turn, [call], await _fingerprint(harness, turn), targets=targets)
        (asked,) = await approvals.list_for_turn(tx.connection, turn.id)
        await approvals.decide(tx.connection, asked.id, state="approved", by="someone", comment="")


async def test_secrets_are_encrypted_and_addresses_checked(harness: TurnWorkerHarness) -> None:
    """Headers are stored encrypted; a private address, and one of an argument's choice, are refused."""
    agent = HttpAgent(harness)
    await agent.configure(look=http_tool("https://example.org/", headers={"X-Key": SECRET}))
    assert SECRET not in str(harness.agent.config)
    assert SECRET not in str(harness.agent.encrypted_secrets)
    (config,) = agent.records.http_tools(harness.agent).values()
    assert config.headers["X-Key"].get_secret_value() == SECRET
    guarded = HttpAgent(harness, allow="")
    for url, pointer in [
        ("http://127.0.0.1/", "/config/tools/http/look/url"),
        ("https://{bird}/", "/config/tools/http/look/url"),
        ("https://example.org/{wing}", "/config/tools/http/look"),
    ]:
        with pytest.raises(InvalidRecord) as refused:
            await guarded.configure(look=http_tool(url))
        assert [one.pointer for one in refused.value.problems] == [pointer]
    async with harness.database.begin() as connection:
        saved = await agent.records.update(connection, harness.agent, patch={"tools": ["bash"]})
    assert agent.records.http_tools(saved.record) == {}
