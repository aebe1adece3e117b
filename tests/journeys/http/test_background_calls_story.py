"""Calls of the gateway that are background jobs: through kills at every step, on servers of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from mcp_types import ToolAnnotations

from gateway_process import GatewayProcess, gateway
from mcp_services import McpService, mcp_service
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

WAIT_SECONDS = 60.0
ADMIN_KEY = "k" * 40
HOME = "the result is home"


def _model(body: dict[str, Any]) -> ScriptedTurn:
    text = last_text(body)
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text=f"told {text}")
    if "Job job_" in text:
        return ScriptedTurn(text=HOME)
    return ScriptedTurn(calls=[ToolCall(name=text.rpartition("use: ")[2])])


@dataclass
class SlowService:
    """The requests that a server got, and the event for which it holds its answers."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[str] = field(default_factory=list)

    async def hold(self, name: str) -> str:
        """Answer when the event is set."""
        self.calls.append(name)
        self.called.set()
        await self.opened.wait()
        return f"{name} is done"

    async def wait_for_calls(self, count: int) -> None:
        """Return when so many requests have arrived: a job may begin before the server has its request."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.calls) < count:  # noqa: ASYNC110 - it happens in the gateway
                await asyncio.sleep(0.05)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer an HTTP request."""
        return web.Response(text=await self.hold(f"{request.method} {request.path}"))

    def add_tools(self, service: McpService) -> None:
        """Add a tool that changes something, and one that only reads."""

        @service.server.tool()
        async def build() -> str:
            """Build."""
            return await self.hold("build")

        @service.server.tool(annotations=ToolAnnotations(read_only_hint=True))
        async def look() -> str:
            """Look."""
            return await self.hold("look")


@asynccontextmanager
async def _http(slow: SlowService) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", slow.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _started(
    tmp_path: Path, model: OpenAIServer, config: dict[str, Any]
) -> AsyncIterator[GatewayProcess]:
    env = {
        "DOVECOTE_AGENT__MODEL": "openai:loopback",
        "DOVECOTE_AGENT__BASE_URL": model.base_url,
        "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
    }
    async with gateway(tmp_path / "data", env=env) as process:
        async with (
            process.http() as session,
            session.patch("/accounts/me/agents/default", json={"config": config}) as answer,
        ):
            assert answer.ok, await answer.text()
        yield process


async def _ask(session: aiohttp.ClientSession, tool: str) -> dict[str, Any]:
    body = {"conversation": "one", "input": f"use: {tool}"}
    async with session.post("/agents/default/turns", json=body) as answer:
        return dict(await answer.json())


async def _wait_for(session: aiohttp.ClientSession, item: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with session.get(f"/status/{item}") as answer:
                found = dict(await answer.json())
            if found["state"] in {"completed", "failed", "cancelled", "stopped", "lost"}:
                return found
            await asyncio.sleep(0.05)


async def _start_job(session: aiohttp.ClientSession, tool: str) -> str:
    """Have the model call a tool, and return the id of the job that its turn got."""
    output = (await _wait_for(session, (await _ask(session, tool))["turnId"]))["output"]
    return str(json.loads(output.removeprefix("told "))["resultId"])


async def _answers(process: GatewayProcess, count: int) -> None:
    """Wait until so many follow-up turns have answered."""
    async with asyncio.timeout(WAIT_SECONDS):
        while json.dumps(await process.events("one")).count(f'"text": "{HOME}"') < count:  # noqa: ASYNC110 - it happens in the gateway
            await asyncio.sleep(0.05)


async def test_calls_of_an_mcp_server_outlive_a_kill(tmp_path: Path) -> None:
    """A call that reads is repeated; one that may change something is not, and its outcome is unknown."""
    slow = SlowService()
    async with OpenAIServer(_model) as model, mcp_service() as service:
        slow.add_tools(service)
        server = {"url": service.url, "approval": "never", "background_after": 0.2, "timeout": 3600}
        async with _started(tmp_path, model, {"mcp": {"s": server}}) as process:
            async with process.http() as session:
                jobs = {name: await _start_job(session, f"s_{name}") for name in ("build", "look")}
                await slow.wait_for_calls(2)
                assert sorted(slow.calls) == ["build", "look"]
            await process.kill()
            slow.opened.set()
            await process.start()
            async with process.http() as session:
                ended = {name: await _wait_for(session, job) for name, job in jobs.items()}
                async with session.get(f"/jobs/{jobs['build']}") as answer:
                    unknown = await answer.json()
            await _answers(process, 2)
    assert (ended["look"]["state"], ended["look"]["output"]) == ("completed", "look is done")
    assert (unknown["state"], unknown["reason"]) == ("failed", "outcome_unknown")
    assert "was not repeated" in unknown["output"]
    assert sorted(slow.calls) == ["build", "look", "look"]


async def test_requests_are_jobs_that_can_be_stopped(tmp_path: Path) -> None:
    """A request of a record and an operation of a document: one ends, one is stopped by its account."""
    slow = SlowService()
    async with OpenAIServer(_model) as model, _http(slow) as url:
        document = {"openapi": "3.1.0", "paths": {"/eggs": {"post": {"operationId": "lay"}}}}
        always = {"approval": "never", "async": True}
        tools = {
            "http": {"hatch": {"url": f"{url}/hatch", "method": "POST", "description": "Hatch.", **always}},
            "openapi": {"d": {"document": json.dumps(document), "url": url, **always}},
        }
        async with _started(tmp_path, model, {"tools": tools}) as process, process.http() as session:
            hatch = await _start_job(session, "hatch")
            lay = await _start_job(session, "d_lay")
            await slow.wait_for_calls(2)
            admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
            async with session.post("/accounts", json={"name": "other"}, headers=admin) as answer:
                other = (await answer.json())["key"]
            headers = {"Authorization": f"Bearer {other}"}
            for path in (f"/jobs/{lay}", f"/jobs/{lay}/logs"):
                async with session.get(path, headers=headers) as answer:
                    assert answer.status == 404
            async with session.post(f"/jobs/{lay}/stop", headers=headers) as answer:
                assert answer.status == 404
            async with session.post(f"/jobs/{lay}/stop") as answer:
                assert answer.status == 202
            assert (await _wait_for(session, lay))["state"] == "stopped"
            slow.opened.set()
            done = await _wait_for(session, hatch)
            await _answers(process, 2)
    assert (done["state"], done["output"]) == ("completed", "HTTP 200\nPOST /hatch is done")
    assert sorted(slow.calls) == ["POST /eggs", "POST /hatch"]


@pytest.mark.parametrize("point", ["job.record_call.before_commit", "job.record_call.after_commit"])
async def test_a_call_is_made_once_despite_a_kill_at(point: str, tmp_path: Path) -> None:
    """Killed there, the job of a call exists once, the request is sent once, and its result comes home."""
    slow = SlowService()
    slow.opened.set()
    async with OpenAIServer(_model) as model, _http(slow) as url:
        tool = {"url": f"{url}/hatch", "method": "POST", "description": "Hatch."}
        tools = {"http": {"hatch": {**tool, "approval": "never", "async": True}}}
        async with _started(tmp_path, model, {"tools": tools}) as process:
            await process.stop()
            await process.start(env={"DOVECOTE_FAULT_POINT": point})
            async with process.http() as session:
                queued = await _ask(session, "hatch")
            assert await process.wait_for_exit() == -9
            await process.start()
            async with process.http() as session:
                reported = (await _wait_for(session, queued["turnId"]))["output"]
                done = await _wait_for(session, json.loads(reported.removeprefix("told "))["resultId"])
            await _answers(process, 1)
            events = await process.events("one")
    assert (done["state"], slow.calls) == ("completed", ["POST /hatch"])
    assert [one["type"] for one in events].count("job.started") == 1
