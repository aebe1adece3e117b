"""A job's result reaches the chat and the webhook although its follow-up turn fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.simulator import Simulator, simulate
from gateway.store.turn_state import DEAD_POINTS
from gateway_process import GatewayProcess, channel_env, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

pytestmark = pytest.mark.timeout(120)

CHAT = 4711
JOB = ToolCall(name="bash", args={"command": "echo pigeon", "background": True})


class FollowUpModel:
    """A model that starts a job when asked, and plays `fault` when it gets the job's result."""

    def __init__(self, fault: Any = "401") -> None:
        self.fault = fault
        self.asked_about_job = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        if body["messages"][-1]["role"] == "tool":
            return ScriptedTurn(text="Started.")
        if "pigeon" in last_text(body):
            self.asked_about_job.set()
            return ScriptedTurn(fault=self.fault) if self.fault else ScriptedTurn(text="The comment.")
        return ScriptedTurn(calls=[JOB])


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


def _env(server: OpenAIServer, platform: Simulator) -> dict[str, str]:
    env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url}
    return env | channel_env("telegram", platform.settings(allow=["*"]))


async def _call(process: GatewayProcess, method: str, path: str, **body: Any) -> dict[str, Any]:
    async with process.http() as session, session.request(method, path, json=body) as response:
        assert response.status < 300, await response.text()
        return dict(await response.json()) if response.content_type == "application/json" else {}


async def _start_job(process: GatewayProcess, platform: Simulator) -> None:
    """Have the agent start a job without asking a person first."""
    config = {"provider": "host", "permissionMode": "bypass"}
    await _call(process, "PATCH", "/accounts/me/sandboxes/default", config=config)
    await platform.say(CHAT, "work")


def _posts(platform: Simulator, part: str) -> list[str]:
    """Return the texts in the chat that contain a part."""
    return [post.text for post in platform.messages(CHAT) if part in post.text]


async def _until_reported(process: GatewayProcess, platform: Simulator) -> None:
    """Check the report in the chat, once, and in `agent.finished`."""
    await platform.wait_until(
        lambda: any("The request failed" in post.text for post in platform.messages(CHAT)), seconds=60
    )
    reports = [post.text for post in platform.messages(CHAT) if "pigeon" in post.text]
    assert len(reports) == 1
    (conversation,) = (await _call(process, "GET", "/conversations"))["items"]
    events = await process.events(conversation["id"])
    (finished,) = [event["data"] for event in events if event["type"] == "agent.finished"]
    assert finished["trigger"] == "job"
    assert finished["state"] == "failed"
    assert finished["exit_code"] == 0
    assert finished["error"]
    for text in (reports[0], finished["output"]):
        assert finished["resultId"] in text
        assert "exit code 0" in text
        assert "pigeon" in text


def _update_follow_up(process: GatewayProcess, changes: str) -> None:
    """Change the follow-up turn's row while the gateway is down."""
    with closing(sqlite3.connect(process.data / "dovecote.db")) as database, database:
        database.execute(f"UPDATE turns SET {changes} WHERE trigger = 'job'")


async def test_a_refused_key_does_not_lose_the_result(platform: Simulator, tmp_path: Path) -> None:
    """The vendor refuses the key after the job was started: the chat gets the job's own report."""
    async with (
        OpenAIServer(FollowUpModel()) as server,
        gateway(tmp_path / "data", env=_env(server, platform)) as process,
    ):
        await _start_job(process, platform)
        await _until_reported(process, platform)


async def test_a_model_that_is_down_delays_only_the_comment(platform: Simulator, tmp_path: Path) -> None:
    """The report and one message about the retries come within seconds; `/retry` gets the comment later."""
    model = FollowUpModel("500")
    async with (
        OpenAIServer(model) as server,
        gateway(tmp_path / "data", env=_env(server, platform)) as process,
    ):
        await _start_job(process, platform)
        await platform.wait_until(lambda: len(_posts(platform, "/retry")) == 1, seconds=60)
        assert len(_posts(platform, "exit code 0")) == 1
        listed = (await _call(process, "GET", "/turns?state=queued"))["items"]
        assert [bool(turn["error"] and turn["next_at"]) for turn in listed] == [True]
        model.fault = None
        await platform.say(CHAT, "/retry")
        await platform.wait_until(lambda: len(_posts(platform, "The comment.")) == 1, seconds=60)
        await platform.wait_until(lambda: len(_posts(platform, "succeeded.")) == 1, seconds=60)
    assert _posts(platform, "/retry") == []
    assert len(_posts(platform, "exit code 0")) == 1


async def test_a_dead_lettered_follow_up_does_not_lose_the_result(
    platform: Simulator, tmp_path: Path
) -> None:
    """A follow-up turn that crashed the gateway too often is never run again; the report still comes."""
    model = FollowUpModel("hang")
    async with (
        OpenAIServer(model) as server,
        gateway(tmp_path / "data", env=_env(server, platform)) as process,
    ):
        await _start_job(process, platform)
        async with asyncio.timeout(60):
            await model.asked_about_job.wait()
        await process.kill()
        _update_follow_up(process, f"crashes = {DEAD_POINTS - 1}")
        await process.start()
        await _until_reported(process, platform)


async def test_a_budget_that_is_used_up_does_not_lose_the_result(platform: Simulator, tmp_path: Path) -> None:
    """The first turn uses the agent's budget: the follow-up is refused and the report comes."""
    async with (
        OpenAIServer(FollowUpModel()) as server,
        gateway(tmp_path / "data", env=_env(server, platform)) as process,
    ):
        limits = {"config": {"limits": {"budgetRequests": 2}}}
        await _call(process, "PATCH", "/accounts/me/agents/default", **limits)
        await _start_job(process, platform)
        await _until_reported(process, platform)


async def test_a_deleted_agent_does_not_lose_the_result(platform: Simulator, tmp_path: Path) -> None:
    """The agent no longer exists when the follow-up turn is claimed: the turn ends with the report."""
    model = FollowUpModel("hang")
    async with (
        OpenAIServer(model) as server,
        gateway(tmp_path / "data", env=_env(server, platform)) as process,
    ):
        await _start_job(process, platform)
        async with asyncio.timeout(60):
            await model.asked_about_job.wait()
        await process.kill()
        _update_follow_up(process, "agent = 'agt_deleted'")
        await process.start()
        await _until_reported(process, platform)
