"""The host provider on a machine where programs fail for a while, as when the kernel refuses a process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import ProviderRefused
from sandbox.host.isolation import bubblewrap, network
from sandbox.host.settings import HostSettings
from sandbox.model import ExecRequest, Network, SandboxSpec
from sandbox.port import Provider, Sandbox
from sandbox_rigs import VARIANTS

SECONDS = 30


@pytest.fixture
def recovered(tmp_path: Path) -> Path:
    """A file without which bubblewrap and pasta fail."""
    return tmp_path / "recovered"


@pytest.fixture
def binary() -> Path:
    """Return the bubblewrap of this machine; skips where it does not work."""
    found = bubblewrap.find()
    if found is None or bubblewrap.probe(found) is not None:
        pytest.skip("no sandbox can be created on this machine")
    return found


@pytest.fixture
def pasta(binary: Path) -> Path:
    """Return the network helper of this machine; skips where it does not work."""
    found = network.find(None, bubblewrap.probe_command(binary))
    if not found.isolated:
        pytest.skip(f"no user-mode networking on this machine: {found.detail}")
    return Path(found.pasta[0])


def failing_at_first(program: Path, wrapper: Path, recovered: Path) -> Path:
    """Write and return a program that runs another one when `recovered` exists."""
    wrapper.write_text(f"#!/bin/sh\n[ -e '{recovered}' ] || exit 1\nexec '{program}' \"$@\"\n")
    wrapper.chmod(0o755)
    return wrapper


async def created(provider: Provider, spec: SandboxSpec) -> Sandbox:
    """Create a sandbox as soon as the provider does not refuse it."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await provider.create(spec)
            except ProviderRefused:
                await asyncio.sleep(0.02)


async def test_a_host_that_works_again_has_sandboxes_without_a_restart(
    binary: Path, recovered: Path, tmp_path: Path
) -> None:
    """Sandboxes are refused while bubblewrap fails, and created when a later request finds that it works."""
    wrapper = failing_at_first(binary, tmp_path / "bwrap", recovered)
    await check_recovery(tmp_path, recovered, HostSettings(bubblewrap=wrapper), Network.DENY_ALL)


async def test_a_network_that_works_again_connects_sandboxes_without_a_restart(
    pasta: Path, recovered: Path, tmp_path: Path
) -> None:
    """Sandboxes with a network are refused while the helper fails, and created when it works."""
    wrapper = failing_at_first(pasta, tmp_path / "pasta", recovered)
    await check_recovery(tmp_path, recovered, HostSettings(network_helper=wrapper), Network.ALLOW_ALL)


async def check_recovery(directory: Path, recovered: Path, settings: HostSettings, reached: Network) -> None:
    """Open the provider while the program fails, let it work, and run a command."""
    rig = replace(VARIANTS["host"]["control_groups"](directory), settings=settings)
    spec = rig.spec(network=reached)
    async with rig.open() as provider:
        with pytest.raises(ProviderRefused):
            await provider.create(spec)
        await asyncio.to_thread(recovered.touch)
        sandbox = await created(provider, spec)
        result = await sandbox.run(ExecRequest(script="echo works"))
        await provider.destroy(sandbox.id)
    assert result.stdout == b"works\n"
