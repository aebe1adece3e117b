"""Services run in the sandboxes of every provider that supports them, with one behaviour."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.port import ToolResult
from gateway.tools.builtin.services import service
from gateway.tools.tool import InvalidArguments
from repetitions import in_gate
from sandbox.config import SandboxConfig
from sandbox.errors import ProviderRefused
from sandbox.lifecycle.services import MAX_SERVICES, SandboxServices
from sandbox.model import ExecRequest
from sandbox.port import Sandbox
from sandbox.testing.rig import ProviderRig
from sandbox.testing.waiting import until
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

IN_GATE = {"host-control_groups", "docker-engine"}
VARIANTS = {*IN_GATE, "e2b-loopback", "daytona-loopback"}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    VARIANTS |= {"kubernetes-pods"}
SERVER = "exec python3 -u -m http.server 8765 --bind 127.0.0.1"

ENDS_ONCE = "echo once >> ~/ends; [ $(wc -l < ~/ends) = 1 ] || exec sleep 300; exit 7"


@pytest.fixture(params=in_gate([name for name in all_rigs() if name in VARIANTS], IN_GATE))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return each provider in turn, closed."""
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
async def sandbox(rig: ProviderRig) -> AsyncIterator[Sandbox]:
    """Return a reserved sandbox."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(persistent=True))
        yield sandbox
        await provider.destroy(sandbox.id)


async def test_a_command_is_started_again_when_it_ends(sandbox: Sandbox, rig: ProviderRig) -> None:
    """It runs while others come and go, is one for its name, is started again, and ends when stopped."""
    services = SandboxServices(sandbox=sandbox)
    first = await services.start("web", f"echo round >> ~/rounds; echo hello; {SERVER}", 8765)
    assert (first.state, first.ready, first.run) == ("running", True, 1)
    async with rig.open() as provider:
        again = SandboxServices(sandbox=await provider.connect(sandbox.id, rig.spec(persistent=True)))
        assert (await again.start("web", "another", 8765)).run == 1
    assert b"hello" in ((await services.logs("web")) or pytest.fail("no logs")).output
    short = await services.start("short", ENDS_ONCE)

    async def came_again() -> bool:
        return (await sandbox.run(ExecRequest(script="cat ~/ends"))).stdout.count(b"once") > 1

    await until(came_again)
    reported = {one.name: one for one in await services.list_all()}
    assert (reported["short"].run, reported["web"].exits) == (short.run, 0)
    assert (reported["short"].state, reported["short"].exits, reported["short"].exit_code) == (
        "running",
        1,
        7,
    )
    assert await services.stop("short")
    assert not await services.stop("short")
    await sandbox.stop(first.job_id)
    assert [(one.name, one.state) for one in await services.list_all()] == [("web", "ended")]
    assert (await services.start("web", SERVER, 8765)).run == first.run + 1


async def test_a_sandbox_has_at_most_five(sandbox: Sandbox, rig: ProviderRig) -> None:
    """A sixth is refused, with the names of those that are there."""
    if rig.plugin.name != "host":
        pytest.skip("counting is the same on every provider")
    services = SandboxServices(sandbox=sandbox)
    for number in range(MAX_SERVICES):
        await services.start(f"s{number}", "exec sleep 30")
    with pytest.raises(ProviderRefused, match="s0, s1, s2, s3, s4"):
        await services.start("more", "exec sleep 30")


async def test_a_model_starts_looks_and_stops(sandbox: Sandbox, rig: ProviderRig) -> None:
    """The tool reports the result, and an error for an unknown service."""
    if rig.plugin.name != "host":
        pytest.skip("the tool is the same on every provider")
    context = make_tool_context(SandboxConfig(provider="host", persistent=True), sandbox, rig)

    async def use(**args: Any) -> ToolResult:
        return await service.run(context, args, "key")

    started = await use(action="start", name="web", command=f"echo hello; {SERVER}", port=8765)
    assert (started.ok, dict(started.detail)["ready"]) == (True, True)
    assert json.loads((await use(action="status")).content)[0]["state"] == "running"
    assert "hello" in json.loads((await use(action="logs", name="web")).content)["output"]
    failing = await use(action="start", name="bad", command="exit 3", port=1)
    assert not failing.ok
    assert (failing.detail["state"], failing.detail["exit_code"]) == ("waiting", 3)
    assert (await use(action="stop", name="web")).ok
    assert "no service 'web'" in (await use(action="stop", name="web")).content
    for wrong in ({"action": "begin"}, {"action": "start", "name": "../x", "command": "true"}):
        with pytest.raises(InvalidArguments):
            await use(**wrong)


def test_it_is_offered_in_reserved_sandboxes(tmp_path: Path) -> None:
    """A sandbox that is not reserved runs no service; approvals work as for commands."""
    rig = all_rigs()["host-rlimits"](tmp_path)
    reserved, passing = SandboxConfig(persistent=True), SandboxConfig()
    assert service.is_available(make_tool_context(reserved, None, rig))
    assert not service.is_available(make_tool_context(passing, None, rig))
    assert service.needs_approval(reserved)
    assert not service.needs_approval(SandboxConfig.model_validate({"permissionMode": "bypass"}))
