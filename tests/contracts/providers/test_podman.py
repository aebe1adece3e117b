"""The docker provider on Podman's compatible socket, which answers 500 where Docker answers 409."""

from __future__ import annotations

from pathlib import Path

from docker_rig import engine_rig
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
