"""A reserved sandbox from outside: made by the first command, asleep, woken, shown, restored, removed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import PIPE, STDOUT, gateway_command
from gateway_process import GatewayProcess, gateway

PATIENCE = 30.0
ADMIN = "the key of an operator, which is long enough"


class AccountView:
    """What an account sees of a gateway."""

    def __init__(self, process: GatewayProcess, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.session = session

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make one request."""
        async with self.session.request(method, path, json=body) as answer:
            return answer.status, await answer.json() if answer.status != 204 else None

    async def turn(self, command: str, *, conversation: str = "one") -> dict[str, Any]:
        """Have the shell agent run a command; returns the ended turn."""
        body = {"input": f"!{command}", "conversation": conversation}
        _status, taken = await self.ask("POST", "/agents/default/turns", body)
        async with asyncio.timeout(PATIENCE):
            while True:
                _status, turn = await self.ask("GET", f"/status/{taken['turnId']}")
                if turn["state"] in ("completed", "failed", "cancelled"):
                    return dict(turn)
                await asyncio.sleep(0.05)

    async def list_sandboxes(self) -> list[dict[str, Any]]:
        """Return the live sandboxes."""
        _status, found = await self.ask("GET", "/sandboxes")
        return list(found["items"])

    async def saved(self) -> None:
        """Wait until the only live sandbox has a snapshot."""
        async with asyncio.timeout(PATIENCE):
            while not (await self.list_sandboxes())[0]["snapshot"]:  # noqa: ASYNC110 - it happens in the gateway
                await asyncio.sleep(0.05)

    async def replaced(self, snapshot: str) -> None:
        """Wait until another snapshot has replaced it: only then is the older one deleted."""
        async with asyncio.timeout(PATIENCE):
            while not (kept := self.snapshots()) or snapshot in kept:  # noqa: ASYNC110 - in the gateway
                await asyncio.sleep(0.05)

    def snapshots(self) -> list[str]:
        """Return the names of the snapshots on the disk."""
        kept = (self.process.data / "snapshots").glob("*/*")
        return sorted(path.name for path in kept if not path.name.startswith("."))

    async def sandbox_events(self, kind: str, *, many: int = 1) -> list[dict[str, Any]]:
        """Wait until the only conversation has so many events of a kind, and return them."""
        _status, found = await self.ask("GET", "/conversations")
        (conversation,) = found["items"]
        async with asyncio.timeout(PATIENCE):
            while True:
                events = await self.process.events(conversation["id"])
                seen = [event for event in events if event["type"] == kind]
                if len(seen) >= many:
                    return seen
                await asyncio.sleep(0.05)


@pytest.fixture
async def account_view(tmp_path: Path) -> AsyncIterator[AccountView]:
    """A gateway that stores snapshots on its disk and checks for idle sandboxes often."""
    env = {
        "DOVECOTE_SANDBOX__SNAPSHOTS": "local",
        "DOVECOTE_SANDBOX__REAP_INTERVAL": "0.2",
        "DOVECOTE_ADMIN_KEY": ADMIN,
        "DOVECOTE_ALLOW_SHARED_HOST": "true",
    }
    async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
        yield AccountView(process, session)


async def _cli(face: AccountView, *words: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOVECOTE_")}
    child = await gateway_command(
        *words,
        env={**kept, "DOVECOTE_URL": face.process.url, "DOVECOTE_KEY": face.process.key},
        cwd=face.process.data.parent,
        stdout=PIPE,
        stderr=STDOUT,
    )
    printed, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, printed.decode()


async def test_a_reserved_sandbox_lives_through_sleep_and_removal(account_view: AccountView) -> None:
    """Commands share one instance; idle it is suspended with an event; used it wakes; deleted it is gone."""
    patch = {"config": {"lifecycle": {"idleTimeoutSeconds": 1}}}
    assert (await account_view.ask("PATCH", "/accounts/me/sandboxes/default", patch))[0] == 200
    assert "kept" in (await account_view.turn("echo kept > $HOME/note; cat $HOME/note"))["output"]
    (sandbox,) = await account_view.list_sandboxes()
    assert (sandbox["state"], sandbox["scope"], sandbox["boot"]) == ("active", "WORKSPACE", 1)
    await account_view.sandbox_events("sandbox.suspended")
    (sandbox,) = await account_view.list_sandboxes()
    assert (sandbox["paused"], sandbox["seconds"] > 0) == (True, True)
    assert "kept" in (await account_view.turn("cat $HOME/note"))["output"]
    started = await account_view.sandbox_events("sandbox.started", many=2)
    assert [event["data"]["reason"] for event in started] == ["created", "woken"]
    status, _ = await account_view.ask("DELETE", f"/sandboxes/{sandbox['id']}")
    assert status == 204
    assert await account_view.list_sandboxes() == []
    (stopped,) = await account_view.sandbox_events("sandbox.stopped")
    assert stopped["data"]["reason"] == "removed"
    assert not list((account_view.process.data / "sandboxes" / "sandboxes").glob("*"))


async def test_the_command_line_shows_and_uses_sandboxes(account_view: AccountView) -> None:
    """`dovecote sandboxes list|show|exec|stop|sweep|rm`, with a result for programs too."""
    await account_view.turn("true")
    (sandbox,) = await account_view.list_sandboxes()
    _status, used = await account_view.ask("GET", "/accounts/me/usage")
    assert used["total"]["sandbox_seconds"] > 0
    code, printed = await _cli(account_view, "sandboxes", "list", "--json")
    assert (code, json.loads(printed)[0]["id"], json.loads(printed)[0]["name"]) == (
        0,
        sandbox["id"],
        "default",
    )
    code, printed = await _cli(account_view, "sandboxes", "exec", "default", "echo out; echo err >&2; exit 3")
    assert (code, sorted(printed.split())) == (3, ["err", "out"])
    code, printed = await _cli(account_view, "sandboxes", "stop", sandbox["id"])
    assert (code, (await account_view.list_sandboxes())[0]["state"]) == (0, "suspended")
    orphan = account_view.process.data / "sandboxes" / "sandboxes" / "host-orphan"
    orphan.mkdir(parents=True)
    label = next((account_view.process.data / "sandboxes" / "sandboxes").glob("*/label")).read_text()
    (orphan / "label").write_text(f"{label[:-3]}xyz")
    foreign = orphan.with_name("host-foreign")
    foreign.mkdir()
    (foreign / "label").write_text("dovecote-somebody-else")
    code, printed = await _cli(account_view, "sandboxes", "sweep")
    assert (code, printed.strip()) == (0, "1 deleted")
    assert (orphan.exists(), foreign.exists()) == (False, True)
    assert (await _cli(account_view, "sandboxes", "rm", sandbox["id"]))[0] == 0
    assert await account_view.list_sandboxes() == []
    code, printed = await _cli(account_view, "sandboxes", "exec", "default", "true")
    assert (code, "no live sandbox" in printed) == (1, True)
    _status, used = await account_view.ask("GET", "/accounts/me/usage")
    assert next((part["kind"], part["what"]) for part in used["parts"]) == ("sandbox", "host")
    await account_view.ask(
        "PATCH", "/accounts/me/agents/default", {"config": {"limits": {"budgetSeconds": 0.001}}}
    )
    refused = await account_view.turn("true")
    assert (refused["state"], "sandbox seconds" in refused["error"]) == ("failed", True)


def _write_wheel(directory: Path) -> None:
    """Write a wheel of a module `pigeon` with nothing but a name."""
    inside = {
        "pigeon.py": "NAME = 'homing'\n",
        "pigeon-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n",
        "pigeon-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "pigeon-1.0.dist-info/RECORD": "pigeon.py,,\npigeon-1.0.dist-info/METADATA,,\n"
        "pigeon-1.0.dist-info/WHEEL,,\npigeon-1.0.dist-info/RECORD,,\n",
    }
    with zipfile.ZipFile(directory / "pigeon-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in inside.items():
            wheel.writestr(name, text)


async def test_what_pip_installed_is_there_again_after_the_sandbox_was_destroyed(
    account_view: AccountView,
) -> None:
    """Installed into HOME, destroyed with its instance, restored by the next turn from the snapshot."""
    await account_view.turn("true")
    await account_view.saved()
    (empty,) = account_view.snapshots()
    (workspace,) = (account_view.process.data / "workspaces").iterdir()
    _write_wheel(workspace)
    pip = "python3 -m pip install --user --quiet --no-index --find-links . pigeon"
    installed = await account_view.turn(f"{pip} && python3 -c 'import pigeon; print(pigeon.NAME)'")
    if "No module named pip" in installed["output"]:
        pytest.skip("this machine's python3 has no pip")
    assert "homing" in installed["output"], installed["output"]
    await account_view.replaced(empty)
    for place in (account_view.process.data / "sandboxes" / "sandboxes").iterdir():
        shutil.rmtree(place)
    again = await account_view.turn("python3 -c 'import pigeon; print(pigeon.NAME)'")
    assert "homing" in again["output"], again["output"]
    assert (await account_view.sandbox_events("sandbox.started", many=2))[-1]["data"]["reason"] == "restored"


async def test_a_removed_workspace_takes_its_sandbox_along(account_view: AccountView) -> None:
    """Deleting a workspace or a sandbox record leaves no live sandbox of it."""
    made = {}
    for kind in ("sandboxes", "workspaces"):
        config = {"persistent": True} if kind == "sandboxes" else {}
        _s, made[kind] = await account_view.ask(
            "POST", f"/accounts/me/{kind}", {"name": "mine", "config": config}
        )
    use = {"name": "mine", "workspaceId": made["workspaces"]["id"], "sandbox": made["sandboxes"]["id"]}
    await account_view.ask("PATCH", "/accounts/me/agents/default", {"config": {"workspaces": [use]}})
    await account_view.turn("true")
    (sandbox,) = await account_view.list_sandboxes()
    assert sandbox["workspace"] == made["workspaces"]["id"]
    await account_view.ask("PATCH", "/accounts/me/agents/default", {"config": {"workspaces": []}})
    assert (await account_view.ask("DELETE", "/accounts/me/workspaces/mine"))[0] == 204
    assert await account_view.list_sandboxes() == []
    assert not list((account_view.process.data / "sandboxes" / "sandboxes").glob("*"))


async def test_a_removed_account_takes_its_sandboxes_along(account_view: AccountView) -> None:
    """Deleting an account deletes its instances and snapshots; others keep theirs."""
    await account_view.turn("true")
    async with aiohttp.ClientSession(
        account_view.process.url, headers={"Authorization": f"Bearer {ADMIN}"}
    ) as operator:
        async with operator.post("/accounts", json={"name": "other"}) as answer:
            made = await answer.json()
        budget = {"tokens": 5}
        async with operator.put(f"/accounts/{made['id']}/budget", json=budget) as answer:
            assert (answer.status, (await answer.json())["tokens"]) == (200, 5)
    async with aiohttp.ClientSession(
        account_view.process.url, headers={"Authorization": f"Bearer {made['key']}"}
    ) as session:
        other = AccountView(account_view.process, session)
        await other.ask("POST", "/accounts/me/sandboxes", {"name": "box", "config": {"persistent": True}})
        await other.ask("POST", "/accounts/me/agents", {"name": "default", "config": {"sandbox": "box"}})
        await other.turn("echo kept > $HOME/note")
        await other.saved()
        places = account_view.process.data / "sandboxes" / "sandboxes"
        assert len(list(places.iterdir())) == 2
        assert (await other.ask("DELETE", "/accounts/me"))[0] == 204
    assert len(list(places.iterdir())) == len(await account_view.list_sandboxes()) == 1
    assert len(list((account_view.process.data / "snapshots").iterdir())) <= 1


async def test_a_job_that_outlives_its_sandbox_is_reported(account_view: AccountView) -> None:
    """At its maximum age a sandbox is deleted although a job runs, and the chat gets the job's failure."""
    lifecycle = {"lifecycle": {"idleTimeoutSeconds": 1, "maxLifetimeSeconds": 4}}
    await account_view.ask("PATCH", "/accounts/me/sandboxes/default", {"config": lifecycle})
    await account_view.turn("true")
    await account_view.turn("&sleep 300")
    (failed,) = await account_view.sandbox_events("job.failed")
    assert failed["data"]["reason"] == "sandbox_expired"
    (stopped,) = await account_view.sandbox_events("sandbox.stopped")
    assert stopped["data"]["reason"] == "expired"
    assert not [
        event
        for event in await account_view.sandbox_events("sandbox.started")
        if event["data"]["reason"] == "woken"
    ]
