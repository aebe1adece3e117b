"""An agent in a remote sandbox: the SDKs at loopback services, through a whole gateway."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import cloud_gateways
from api_server import ApiClient, ApiResponse
from gateway_process import gateway
from repetitions import in_gate

PROVIDERS = {"e2b": cloud_gateways.e2b, "daytona": cloud_gateways.daytona}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    PROVIDERS["kubernetes"] = cloud_gateways.kubernetes


async def _ended(client: ApiClient, path: str) -> ApiResponse:
    async with asyncio.timeout(60):
        while True:
            answer = await client.call("GET", path)
            if answer.body["state"] not in ("queued", "running"):
                return answer
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("provider", in_gate(PROVIDERS, {"e2b"}))
async def test_commands_jobs_and_files_of_a_sandbox_elsewhere(tmp_path: Path, provider: str) -> None:
    """The next turn finds the last one's files; a job outlives SIGKILL and delivers its file."""
    env = dict(PROVIDERS[provider]())
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)

        async def turn(text: str) -> ApiResponse:
            body = {"input": text, "conversation": "demo"}
            taken = await mine.call("POST", "/agents/default/turns", body)
            assert taken.status == 202, taken.body
            return await _ended(mine, f"/status/{taken.body['turnId']}")

        assert "made" in (await turn("!echo made | tee note.txt")).body["output"]
        assert "made" in (await turn("!cat note.txt; pwd")).body["output"]
        await turn("!& mkdir -p outbox; sleep 3; echo paper > outbox/report.txt; echo home")
        job = (await mine.call("GET", "/jobs")).body["items"][0]["resultId"]
        await process.kill()
        await process.start()
        mine = ApiClient(session=session, url=process.url, key=process.key)
        done = await _ended(mine, f"/status/{job}")
        assert (done.body["state"], done.body["exit_code"]) == ("completed", 0)
        finished: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            while not finished:
                seen = await process.events("demo")
                reported = [one for one in seen if one["type"] == "agent.finished"]
                finished = [one for one in reported if one["data"].get("resultId") == job]
                await asyncio.sleep(0.1)
        assert len(finished) == 1
        assert "home" in finished[0]["data"]["output"]
        assert [file["name"] for file in finished[0]["data"]["files"]] == ["report.txt"]


async def test_a_workspace_is_carried_to_a_sandbox_elsewhere_and_back(tmp_path: Path) -> None:
    """Uploads are in the next sandbox, what turns and jobs write can be downloaded, removals go both ways."""
    async with (
        gateway(tmp_path / "data", env=cloud_gateways.daytona()) as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        files = f"{process.url}/accounts/me/workspaces/work/files"
        headers = {"Authorization": f"Bearer {process.key}"}

        async def names() -> set[str]:
            listed = await mine.call("GET", "/accounts/me/workspaces/work/files")
            return {one["name"] for one in listed.body["items"]}

        async def turn(text: str) -> str:
            taken = await mine.call("POST", "/agents/a/turns", {"input": text, "conversation": "demo"})
            assert taken.status == 202, taken.body
            return str((await _ended(mine, f"/status/{taken.body['turnId']}")).body["output"])

        sandbox = {"provider": "daytona", "permissionMode": "bypass"}
        await mine.call("POST", "/accounts/me/workspaces", {"name": "work"})
        await mine.call("POST", "/accounts/me/sandboxes", {"name": "box", "config": sandbox})
        agent = {"sandbox": "box", "workspaces": [{"name": "work", "workspaceId": "work"}]}
        made = await mine.call("POST", "/accounts/me/agents", {"name": "a", "config": agent})
        assert made.status == 201, made.body
        async with session.put(f"{files}/given.txt", data=b"uploaded", headers=headers) as answer:
            assert answer.status == 204
        assert "uploaded" in await turn("!cat given.txt; echo made > note.txt")
        assert await names() == {"given.txt", "note.txt"}, "a completed turn's files are in the store"
        async with session.delete(f"{files}/given.txt", headers=headers) as answer:
            assert answer.status == 204
        assert "note.txt" in (listed := await turn("!ls; rm note.txt"))
        assert "given.txt" not in listed
        assert await names() == set()
        await turn("!& sleep 1; echo late > late.txt")
        job = (await mine.call("GET", "/jobs")).body["items"][0]["resultId"]
        assert (await _ended(mine, f"/status/{job}")).body["state"] == "completed"
        assert await names() == {"late.txt"}
        await process.stop()
        await process.start(env={"DOVECOTE_FAULT_POINT": "workspace.carry.before_store"})
        mine = ApiClient(session=session, url=process.url, key=process.key)
        body = {"input": "!echo kept > killed.txt", "conversation": "demo"}
        taken = await mine.call("POST", "/agents/a/turns", body)
        await process.wait_for_exit()
        await process.start()
        mine = ApiClient(session=session, url=process.url, key=process.key)
        done = await _ended(mine, f"/status/{taken.body['turnId']}")
        assert done.body["state"] == "completed"
        assert await names() == {"late.txt", "killed.txt"}, "brought home before the turn was completed"


@pytest.mark.parametrize("provider", in_gate(PROVIDERS, {"e2b"}))
async def test_a_sandbox_at_the_end_of_its_life_gives_back_its_files(tmp_path: Path, provider: str) -> None:
    """A job's files so far are synced, the job fails with the reason, the next sandbox has them."""
    env = {**PROVIDERS[provider](), "DOVECOTE_SANDBOX__REAP_INTERVAL": "0.2"}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)

        async def turn(text: str) -> str:
            taken = await mine.call("POST", "/agents/default/turns", {"input": text, "conversation": "demo"})
            return str((await _ended(mine, f"/status/{taken.body['turnId']}")).body["output"])

        life = {"config": {"persistent": True, "lifecycle": {"maxLifetimeSeconds": 3}}}
        assert (await mine.call("PATCH", "/accounts/me/sandboxes/default", life)).status == 200
        await turn("!& echo so far >kept.txt; echo said; exec sleep 300")
        job = (await mine.call("GET", "/jobs")).body["items"][0]["resultId"]
        assert (await _ended(mine, f"/status/{job}")).body["state"] == "failed"
        shown = (await mine.call("GET", f"/jobs/{job}")).body
        assert (shown["reason"], shown["output"]) == ("sandbox_expired", "said\n")
        async with asyncio.timeout(30):
            while (await mine.call("GET", "/sandboxes")).body["items"]:  # noqa: ASYNC110 - in the gateway
                await asyncio.sleep(0.05)
        assert (await mine.call("GET", "/accounts/me/workspaces/default/files/kept.txt")).body == b"so far\n"
        assert "so far" in await turn("!cat kept.txt")


async def test_a_workspace_needs_a_sandbox_that_lasts(tmp_path: Path) -> None:
    """A workspace in a sandbox at e2b that is not reserved is refused, with the remedy."""
    async with gateway(tmp_path / "data") as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        await mine.call("POST", "/accounts/me/workspaces", {"name": "files"})
        await mine.call("POST", "/accounts/me/sandboxes", {"name": "cloud", "config": {"provider": "e2b"}})
        agent = {"sandbox": "cloud", "workspaces": [{"name": "files", "workspaceId": "files"}]}
        refused = await mine.call("POST", "/accounts/me/agents", {"name": "a", "config": agent})
        assert refused.status == 422
        assert refused.body["errors"][0]["pointer"] == "/config/sandbox"
        assert "persistent" in refused.body["errors"][0]["detail"]
        await mine.call("PATCH", "/accounts/me/sandboxes/cloud", {"config": {"persistent": True}})
        assert (await mine.call("POST", "/accounts/me/agents", {"name": "a", "config": agent})).status == 201
        undone = await mine.call("PATCH", "/accounts/me/sandboxes/cloud", {"config": {"persistent": False}})
        assert undone.status == 422
        assert undone.body["errors"][0]["pointer"] == "/config/persistent"
        assert "agent 'a'" in undone.body["errors"][0]["detail"]
        await mine.call("POST", "/accounts/me/sandboxes", {"name": "spare", "config": {"provider": "e2b"}})
        use = {"name": "files", "workspaceId": "files", "sandbox": None}
        read = {"sandbox": "spare", "workspaces": [use]}
        assert (await mine.call("POST", "/accounts/me/agents", {"name": "b", "config": read})).status == 201


@pytest.mark.skipif(not os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"), reason="needs every provider")
async def test_a_workspace_on_lambda_keeps_its_files_and_refuses_jobs(tmp_path: Path) -> None:
    """Turns find each other's files; jobs and reserved sandboxes are refused in words."""
    async with (
        gateway(tmp_path / "data", env=cloud_gateways.aws_lambda()) as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)

        async def turn(agent: str, text: str) -> str:
            taken = await mine.call(
                "POST", f"/agents/{agent}/turns", {"input": text, "conversation": f"demo-{agent}"}
            )
            assert taken.status == 202, taken.body
            return str((await _ended(mine, f"/status/{taken.body['turnId']}")).body["output"])

        sandbox: dict[str, Any] = {"provider": "lambda", "permissionMode": "bypass"}
        refused = await mine.call(
            "POST", "/accounts/me/sandboxes", {"name": "kept", "config": {**sandbox, "persistent": True}}
        )
        assert refused.status == 422
        assert "persistent" in str(refused.body)
        await mine.call("POST", "/accounts/me/workspaces", {"name": "work"})
        made = await mine.call("POST", "/accounts/me/sandboxes", {"name": "box", "config": sandbox})
        assert made.status == 201, made.body
        work = [{"name": "work", "workspaceId": "work"}]
        for name, config in (("a", {"sandbox": "box", "workspaces": work}), ("b", {"sandbox": "box"})):
            made = await mine.call("POST", "/accounts/me/agents", {"name": name, "config": config})
            assert made.status == 201, made.body
        assert "made" in await turn("a", "!echo made | tee note.txt")
        assert "made" in await turn("a", "!cat note.txt")
        assert "nothing" in await turn("b", "!ls; touch left; echo nothing")
        assert "left" not in await turn("b", "!ls")
        assert "there is no argument 'background'" in await turn("a", "!& sleep 1; echo late")
        listed = await mine.call("GET", "/accounts/me/workspaces/work/files")
        assert {one["name"] for one in listed.body["items"]} == {"note.txt"}
