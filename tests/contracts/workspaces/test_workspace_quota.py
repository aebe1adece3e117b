"""A workspace on this machine with a limited size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.config import SandboxConfig
from sandbox.docker.settings import DockerSettings
from sandbox.errors import ProviderRefused
from sandbox.host.settings import HostSettings
from sandbox.lifecycle.services import SandboxServices
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest
from sandbox.port import Provider
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.workspaces.disk_quota import Quota, quota_of
from sandbox_rigs import variants_of

MEGABYTE = 1024 * 1024
SPACE = {"disk_gb": 0.01}
"""Ten megabytes."""


@pytest.fixture(params=[("host", "rlimits"), ("docker", "engine")], ids=["host", "docker"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return a provider that mounts the workspace store."""
    provider, way = request.param
    return variants_of(provider)[way](tmp_path)


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Open the provider, and leave nothing behind."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


async def test_a_command_that_fills_the_workspace_is_ended(provider: Provider, rig: ProviderRig) -> None:
    """The command ends long before its time-out with the reason; after files are removed work goes on."""
    sandbox = await provider.create(rig.spec(options=SPACE))
    filling = "head -c 30000000 /dev/zero >big; sleep 60"
    async with asyncio.timeout(30):
        result = await sandbox.run(ExecRequest(script=filling, timeout=60))
    assert result.exit_code == 137
    assert b"remove files before writing more" in result.stderr
    with pytest.raises(ProviderRefused, match="remove files"):
        await sandbox.write("more", b"more")
    noted = await sandbox.run(ExecRequest(script="echo still works"))
    assert (noted.exit_code, noted.stdout) == (0, b"still works\n")
    assert b"remove files" in noted.stderr
    removed = await sandbox.run(ExecRequest(script="rm big; echo removed"))
    assert (removed.stdout, removed.stderr) == (b"removed\n", b"")
    await sandbox.write("more", b"more")


async def test_a_full_workspace_may_be_emptied_and_not_filled_further(
    provider: Provider, rig: ProviderRig
) -> None:
    """Over its quota from before, a command runs as long as it likes unless it writes more."""
    sandbox = await provider.create(rig.spec(options=SPACE))
    (rig.workspace / "old").write_bytes(b"x" * 20 * MEGABYTE)
    patient = await sandbox.run(ExecRequest(script="sleep 3; rm old; echo emptied"))
    assert (patient.stdout, patient.stderr) == (b"emptied\n", b"")
    (rig.workspace / "old").write_bytes(b"x" * 20 * MEGABYTE)
    greedy = await sandbox.run(ExecRequest(script="head -c 1000000 /dev/zero >new; sleep 60"))
    assert greedy.exit_code == 137


async def test_a_job_that_fills_the_workspace_is_found_out(provider: Provider, rig: ProviderRig) -> None:
    """The status has the reason, so that the job can be ended with it; a service is ended at once."""
    sandbox = await provider.create(rig.spec(options=SPACE, persistent=True))
    await sandbox.spawn(
        BackgroundJob(id="fill", script="head -c 30000000 /dev/zero >big; sleep 60", token=TOKEN)
    )
    async with asyncio.timeout(30):
        while not (report := await sandbox.report("fill")).over_quota:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    assert report.state is BackgroundJobState.RUNNING
    await sandbox.stop("fill")
    assert not (await sandbox.report("fill")).over_quota
    served = await SandboxServices(sandbox=sandbox).start("fill", "sleep 60")
    assert served.state == "ended"


def test_what_is_counted(tmp_path: Path) -> None:
    """Holes cost nothing, a file with two names counts once, and what links lead to does not count."""
    (tmp_path / "space").mkdir()
    with (tmp_path / "space/sparse").open("wb") as sparse:
        sparse.truncate(50 * 1024**3)
    (tmp_path / "space/one").write_bytes(b"x" * MEGABYTE)
    (tmp_path / "space/two").hardlink_to(tmp_path / "space/one")
    (tmp_path / "outside").write_bytes(b"x" * 5 * MEGABYTE)
    (tmp_path / "space/link").symlink_to(tmp_path / "outside")
    used = Quota(directory=tmp_path / "space", limit=1).used()
    assert MEGABYTE <= used < 2 * MEGABYTE


def test_whose_quota_holds(rig: ProviderRig) -> None:
    """The record's diskGb wins over the operator's default; without either, or read-only, there is none."""
    assert quota_of(rig.spec(), None) is None
    assert quota_of(rig.spec(read_only=True), 5) is None
    assert quota_of(rig.spec(), 5) == Quota(directory=rig.workspace, limit=5)
    assert quota_of(rig.spec(options=SPACE), 5) == Quota(directory=rig.workspace, limit=10_000_000)
    for settings in (HostSettings, DockerSettings):
        assert settings(workspace_bytes=5 * MEGABYTE).workspace_bytes == 5 * MEGABYTE
    config = SandboxConfig.model_validate({"options": {"diskGb": 3}})
    assert not rig.plugin.check(config)
