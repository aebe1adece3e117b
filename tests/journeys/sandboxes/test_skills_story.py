"""Agents have files and load skills: uploaded over HTTP, written to the workspace, given to the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server import ADMIN_KEY, ApiClient, ApiResponse
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsGateway:
    """A gateway whose agent talks to a scripted model."""

    process: GatewayProcess
    session: aiohttp.ClientSession
    mine: ApiClient
    model: OpenAIServer

    async def upload(self, path: str, content: bytes, *, key: str = "") -> int:
        """Put a file and return the status."""
        headers = {"Authorization": f"Bearer {key or self.process.key}"}
        url = self.process.url + path
        async with self.session.put(url, data=BytesIO(content), headers=headers) as answer:
            return answer.status

    async def turn(self, text: str) -> ApiResponse:
        """Ask the default agent and wait for the end."""
        body = {"input": text, "conversation": "demo"}
        taken = await self.mine.call("POST", "/agents/default/turns", body)
        async with asyncio.timeout(40):
            while True:
                answer = await self.mine.call("GET", f"/status/{taken.body['turnId']}")
                if answer.body["state"] in ("completed", "failed"):
                    return answer
                await asyncio.sleep(0.05)


SCRIPT: list[ScriptedTurn] = [
    ScriptedTurn(calls=[ToolCall(name="load_skill", args={"name": "reports"})]),
    ScriptedTurn(calls=[ToolCall(name="read", args={"path": ".claude/skills/reports/forms/a.txt"})]),
    ScriptedTurn(calls=[ToolCall(name="glob", args={"pattern": "knowledge/**"})]),
    ScriptedTurn(text="All read."),
    ScriptedTurn(calls=[ToolCall(name="glob", args={"pattern": "knowledge/**"})]),
    ScriptedTurn(text="Again."),
    ScriptedTurn(calls=[ToolCall(name="load_skill", args={"name": "reports"})]),
    ScriptedTurn(calls=[ToolCall(name="glob", args={"pattern": ".claude/skills/**/*"})]),
    ScriptedTurn(text="Once more."),
]


@pytest.fixture
async def skills_gateway(tmp_path: Path) -> AsyncIterator[SkillsGateway]:
    """Run a gateway with a model."""
    async with OpenAIServer(list(SCRIPT)) as model, aiohttp.ClientSession() as session:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "DOVECOTE_VENDORS__OPENAI_API_KEY": "sk-loopback",
            "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
        }
        async with gateway(tmp_path / "data", env=env) as process:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            yield SkillsGateway(process=process, session=session, mine=mine, model=model)


async def test_a_skill_is_loaded_and_an_agents_files_are_in_its_workspace(
    skills_gateway: SkillsGateway,
) -> None:
    """The guide is in the instructions, the skill in the tool's words, all files in the workspace."""
    made = await skills_gateway.mine.call(
        "POST", "/accounts/me/skills", {"name": "reports", "config": {"description": "how to write reports"}}
    )
    assert made.status == 201, made.body
    skill, agent = "/accounts/me/skills/reports/files", "/accounts/me/agents/default/files"
    assert await skills_gateway.upload(f"{skill}/SKILL.md", b"Begin with the result.") == 204
    assert await skills_gateway.upload(f"{skill}/forms/a.txt", b"form A") == 204
    assert await skills_gateway.upload(f"{agent}/AGENTS.md", b"You are careful.") == 204
    assert await skills_gateway.upload(f"{agent}/knowledge/old.txt", b"old") == 204

    assert (await skills_gateway.turn("write a report")).body["output"] == "All read."
    first, *rest = skills_gateway.model.bodies
    assert first["messages"][0]["content"].startswith("You are careful.")
    tools: dict[str, Any] = {one["function"]["name"]: one["function"] for one in first["tools"]}
    assert "reports: how to write reports" in tools["load_skill"]["description"]
    assert {"bash", "read", "write", "edit", "glob", "grep", "list_files", "deliver_file"} <= set(tools)
    assert "Begin with the result." in last_text(rest[0])
    assert last_text(rest[1]) == "     1\tform A"
    assert last_text(rest[2]) == "knowledge/old.txt"

    assert (await skills_gateway.mine.call("DELETE", f"{agent}/knowledge/old.txt")).status == 204
    assert await skills_gateway.upload(f"{agent}/knowledge/new.txt", b"new") == 204
    assert (await skills_gateway.turn("look again")).body["output"] == "Again."
    assert last_text(skills_gateway.model.bodies[-1]) == "knowledge/new.txt"

    assert (await skills_gateway.mine.call("DELETE", f"{skill}/forms/a.txt")).status == 204
    assert (await skills_gateway.mine.call("POST", "/accounts/me/skills", {"name": "new"})).status == 201
    assert (await skills_gateway.turn("once more")).body["output"] == "Once more."
    offered = {one["function"]["name"]: one["function"] for one in skills_gateway.model.bodies[-1]["tools"]}
    assert offered["load_skill"]["parameters"]["properties"]["name"]["enum"] == ["reports", "new"]
    assert last_text(skills_gateway.model.bodies[-1]) == ".claude/skills/reports/SKILL.md"


async def test_bundles_are_bounded_and_the_accounts_own(skills_gateway: SkillsGateway) -> None:
    """Ways out, other places, too much and another account's are refused; the rest is read back."""
    agent = "/accounts/me/agents/default/files"
    for path in ("elsewhere/x", "skills/../../x", "AGENTS.md/../x"):
        assert await skills_gateway.upload(f"{agent}/{path.replace('..', '%2e%2e')}", b"x") in (404, 422), (
            path
        )
    assert await skills_gateway.upload(f"{agent}/knowledge/big", bytes(1024 * 1024 + 1)) == 413
    assert await skills_gateway.upload(f"{agent}/knowledge/one", b"content") == 204
    listed = (await skills_gateway.mine.call("GET", agent)).body["items"]
    assert [(one["path"], one["size"]) for one in listed] == [("knowledge/one", 7)]
    assert (await skills_gateway.mine.call("GET", f"{agent}/knowledge/one")).body == b"content"
    operator = ApiClient(session=skills_gateway.session, url=skills_gateway.process.url, key=ADMIN_KEY)
    other = (await operator.call("POST", "/accounts", {"name": "other"})).body["key"]
    outsider = ApiClient(session=skills_gateway.session, url=skills_gateway.process.url, key=other)
    assert (await skills_gateway.mine.call("POST", "/accounts/me/skills", {"name": "mine"})).status == 201
    assert await skills_gateway.upload("/accounts/me/skills/mine/files/SKILL.md", b"x", key=other) == 404
    assert (await outsider.call("GET", "/accounts/me/skills/mine/files/SKILL.md")).status == 404
    assert (await skills_gateway.mine.call("DELETE", "/accounts/me/skills/mine")).status == 204
