"""The docker provider on Podman's compatible socket, which answers 500 where Docker answers 409.

With `DOVECOTE_TEST_EVERY_PROVIDER=1` the whole contract of providers runs on Podman too (`docker_rig`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from docker_rig import engine_rig
from sandbox.docker.capabilities import engine_name, user_problems
from sandbox.docker.engine import open_engine
from sandbox.docker.settings import DockerSettings
from sandbox.labels import key_of
from sandbox.model import ExecRequest


async def test_a_sandbox_is_created_suspended_and_resumed(tmp_path: Path) -> None:
    """A label gives one sandbox, also when its name is taken, and a suspended one runs the next command."""
    rig = engine_rig("podman", tmp_path, kind="podman")
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        try:
            assert (await provider.create(rig.spec())).id == sandbox.id
            await sandbox.suspend()
            assert (await sandbox.run(ExecRequest(script="echo out > ~/f; cat ~/f"))).stdout == b"out\n"
        finally:
            await provider.destroy(sandbox.id)


async def test_containers_of_an_account_have_one_control_group(tmp_path: Path) -> None:
    """As on Docker, the kernel divides the processors among accounts."""
    rig = engine_rig("podman", tmp_path, kind="podman")
    groups, parents = {}, {account: f"/dovecote/{key_of('account', account)}" for account in ("one", "other")}
    async with rig.open() as provider, AsyncExitStack() as made:
        for account, label in (("one", "a"), ("one", "b"), ("other", "c")):
            sandbox = await provider.create(rig.spec(label=f"{rig.label}{label}", account=account))
            made.push_async_callback(provider.destroy, sandbox.id)
            lines = (await sandbox.run(ExecRequest(script="cat /proc/self/cgroup"))).stdout.decode().split()
            groups[label] = {line.split(":", 2)[2].rpartition("/")[0] for line in lines} - {""}
    if not groups["a"]:
        pytest.skip("a container does not see its control group here")
    assert groups == {"a": {parents["one"]}, "b": {parents["one"]}, "c": {parents["other"]}}


@pytest.mark.parametrize(
    ("is_podman", "option", "expected"),
    [(True, "seccomp,profile=default", "cgroupfs"), (True, "rootless", ""), (False, "rootless", "cgroupfs")],
)
async def test_a_rootless_podman_gets_no_groups(*, is_podman: bool, option: str, expected: str) -> None:
    """It may not create a group outside those of its user; `/info` names it among the security options."""

    async def info(_request: web.Request) -> web.Response:
        return web.json_response({"CgroupDriver": "cgroupfs", "SecurityOptions": [f"name={option}"]})

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41"})

    app = web.Application()
    app.add_routes([web.get("/version", version), web.get("/{version}/info", info)])
    async with (
        TestServer(app) as server,
        open_engine(DockerSettings(host=f"tcp://{server.host}:{server.port}")) as engine,
    ):
        assert await engine.cgroup_driver(is_podman=is_podman) == expected


async def test_doctor_names_the_engine(tmp_path: Path) -> None:
    """The checks of `dovecote doctor` say that the socket is Podman's, and all of them pass."""
    rig = engine_rig("podman", tmp_path, kind="podman")
    found = await asyncio.to_thread(rig.plugin.capabilities, rig.settings)
    assert "Podman Engine" in {one.name: one.detail for one in found}["isolation"]
    assert [one.name for one in found if not one.present] == []


def test_a_rootless_engine_needs_its_own_user() -> None:
    """The check names the setting; without rootless there is no such check."""
    rootless = {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}
    (missing,) = user_problems(DockerSettings(), rootless)
    assert not missing.present
    assert 'user = "0:0"' in missing.detail
    assert [one.present for one in user_problems(DockerSettings(user="0:0"), rootless)] == [True]
    assert not [*user_problems(DockerSettings(), {"SecurityOptions": ["name=seccomp"]})]


def test_an_engine_without_components_has_a_name() -> None:
    """An answer without the optional field is no error."""
    assert engine_name({"Version": "1"}) == "Engine"
