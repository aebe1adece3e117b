"""What begins turns by itself ends with the agent that would answer."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from command_line import run_command_line
from delivery.webhooks.signing import sign
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess, gateway
from turn_requests import is_finished, poll_until

GONE = "belongs to an agent that no longer exists"


async def call(process: GatewayProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request; return its status and its answer."""
    async with process.http() as session, session.request(method, path, json=body) as answer:
        return answer.status, None if answer.status == 204 else await answer.json()


async def delete_agent(process: GatewayProcess, data: Path, *, declared: bool) -> None:
    """Delete the agent, by its table or over HTTP."""
    if not declared:
        assert (await call(process, "DELETE", "/accounts/me/agents/ada"))[0] == 204
        return
    (data / "dovecote.toml").write_text("")
    env = environment_without_ours() | {"DOVECOTE_DATA_DIR": str(data)}
    done = await asyncio.to_thread(
        run_command_line, "apply", "--config", str(data / "dovecote.toml"), env=env
    )
    assert "delete agent ada" in done.output, done.output


@pytest.mark.parametrize("declared", [True, False], ids=["file", "http"])
async def test_schedules_and_triggers_end_with_their_agent(tmp_path: Path, *, declared: bool) -> None:
    """Its schedules of turns end with a note, reminders stay, and what is started by hand says why not."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "dovecote.toml").write_text('[agents.ada]\nmodel = "builtin:shell"\n' if declared else "")
    env = {"DOVECOTE_CONFIG": str(data / "dovecote.toml")}
    async with gateway(data, env=env) as process:
        if not declared:
            new = {"name": "ada", "config": {"model": "builtin:shell"}}
            assert (await call(process, "POST", "/accounts/me/agents", new))[0] == 201
        place = {"conversation": "daily", "agent": "ada"}
        every = {**place, "text": "!echo hi", "every": "PT1H"}
        _, turns = await call(process, "POST", "/accounts/me/schedules", every)
        _, reminder = await call(process, "POST", "/accounts/me/schedules", {**every, "kind": "reminder"})
        _, trigger = await call(process, "POST", "/accounts/me/triggers", {**place, "template": "!echo hi"})

        await delete_agent(process, data, declared=declared)

        _, ended = await call(process, "GET", f"/accounts/me/schedules/{turns['id']}")
        assert (ended["state"], ended["next_at"]) == ("ended", None)
        assert ended["note"] == "the agent of its conversation was deleted"
        _, kept = await call(process, "GET", f"/accounts/me/schedules/{reminder['id']}")
        assert kept["state"] == "active"
        status, refused = await call(process, "POST", f"/accounts/me/schedules/{turns['id']}/run")
        assert (status, GONE in refused["detail"]) == (409, True), refused
        soon = {"at": (datetime.now(UTC) + timedelta(seconds=1)).isoformat()}
        _, active = await call(process, "PATCH", f"/accounts/me/schedules/{turns['id']}", soon)
        assert (active["state"], active["note"]) == ("active", "")
        again = await poll_until(
            process, f"/accounts/me/schedules/{turns['id']}", lambda found: found["state"] == "ended"
        )
        assert (again["note"], again["fired"]) == (ended["note"], 0)
        body = json.dumps({}).encode()
        headers = sign([trigger["secret"]], message_id="one", moment=datetime.now(UTC), body=body)
        async with (
            aiohttp.ClientSession(process.url) as sender,
            sender.post(trigger["path"], data=body, headers=headers) as answer,
        ):
            assert (answer.status, GONE in (await answer.json())["detail"]) == (409, True)


async def test_a_conversation_of_another_agent_names_that_agent(tmp_path: Path) -> None:
    """By its name, not its id; when it was deleted, the refusal says so."""
    async with gateway(tmp_path / "data") as process:
        new = {"name": "ada", "config": {"model": "builtin:shell"}}
        assert (await call(process, "POST", "/accounts/me/agents", new))[0] == 201
        place = {"conversation": "daily", "input": "!echo hi"}
        _, turn = await call(process, "POST", "/agents/ada/turns", place)
        await poll_until(process, f"/status/{turn['turnId']}", is_finished)
        status, refused = await call(process, "POST", "/agents/default/turns", place)
        assert (status, "belongs to agent 'ada': name" in refused["detail"]) == (409, True), refused
        await delete_agent(process, tmp_path, declared=False)
        status, refused = await call(process, "POST", "/agents/default/turns", place)
        assert (status, GONE in refused["detail"]) == (409, True), refused


async def test_the_usage_of_a_deleted_agent_has_its_name(tmp_path: Path) -> None:
    """The API and the command line show it, and a response that the agent gave names it as its model."""
    async with gateway(tmp_path / "data") as process:
        for name in ("ada", "unused"):
            new = {"name": name, "config": {"model": "builtin:shell"}}
            _, made = await call(process, "POST", "/accounts/me/agents", new)
        _, turn = await call(process, "POST", "/agents/ada/turns", {"input": "!echo hi"})
        ended = await poll_until(process, f"/status/{turn['turnId']}", is_finished)
        for name in ("ada", "unused"):
            assert (await call(process, "DELETE", f"/accounts/me/agents/{name}"))[0] == 204
        _, usage = await call(process, "GET", "/accounts/me/usage")
        (ada,) = [one for one, name in usage["deleted_agents"].items() if name == "ada"]
        assert (ada in usage["agents"], made["id"] in usage["agents"]) == (True, False)
        _, response = await call(process, "GET", f"/v1/responses/{ended['id'].replace('trn_', 'resp_')}")
        assert response["model"] == "ada"
        env = environment_without_ours() | {"DOVECOTE_URL": process.url, "DOVECOTE_KEY": process.key}
        shown = await asyncio.to_thread(run_command_line, "usage", env=env)
        assert "ada (deleted)" in shown.output, shown.output
