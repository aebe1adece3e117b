"""The host's commands start through the gateway's gate, and hold a place in it only while they start.

They may end while the gateway is paused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from sandbox.host.provider import HostProvider
from sandbox.host.settings import HostSettings
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext, StartGate
from sandbox.registry import plugin

SECONDS = 20.0
LIMIT_SECONDS = 4.0


class CountingGate(StartGate):
    """A gate that admits everybody at once and counts the places."""

    is_contended = False

    def __init__(self, *, is_contended: bool) -> None:
        self.is_contended = is_contended
        self.entered = self.held = 0

    async def enter(self) -> Callable[[], None]:
        """Give a place."""
        self.entered += 1
        self.held += 1
        return self._leave

    def _leave(self) -> None:
        self.held -= 1


class FullGate(StartGate):
    """A gate that admits no command, and sets an event when one asks."""

    is_contended = True

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def enter(self) -> Callable[[], None]:
        """Wait for ever."""
        self.asked.set()
        never: asyncio.Future[Callable[[], None]] = asyncio.get_running_loop().create_future()
        return await never


@asynccontextmanager
async def opened(tmp_path: Path, gate: StartGate) -> AsyncIterator[HostProvider]:
    """Open a host provider behind a gate; skipped where no sandbox can be made."""
    for ability in plugin("host").capabilities(HostSettings()):
        if ability.name == "isolation" and not ability.present:
            pytest.skip(ability.detail)
    context = ProviderContext(
        state=tmp_path / "state", callbacks=CallbackDirectories(root=tmp_path / "callbacks"), starts=gate
    )
    async with plugin("host").open(HostSettings(), context) as provider:
        assert isinstance(provider, HostProvider)
        yield provider


def spec(tmp_path: Path, label: str) -> SandboxSpec:
    """Return a reserved sandbox with a workspace."""
    return SandboxSpec(
        label=label, namespace="space", workspace=tmp_path / label, memory_mb=256, persistent=True
    )


async def run(provider: Provider, wanted: SandboxSpec, script: str) -> bytes:
    """Run a script in a sandbox and return its output."""
    sandbox = await provider.create(wanted)
    return (await sandbox.run(ExecRequest(script=script, timeout=SECONDS))).stdout


async def test_a_command_that_runs_does_not_keep_others_from_starting(tmp_path: Path) -> None:
    """With one place, a second command starts and ends while the first one still waits for a file."""
    first, second = spec(tmp_path, "first"), spec(tmp_path, "second")
    wait_for_file = "touch begun; until [ -e go ]; do sleep 0.05; done; echo first"
    async with opened(tmp_path, FairGate(PoolSize(places=1))) as provider, asyncio.timeout(SECONDS):
        waiting = asyncio.ensure_future(run(provider, first, wait_for_file))
        assert await run(provider, second, "echo second") == b"second\n"
        assert not waiting.done()
        assert first.workspace is not None
        (first.workspace / "go").touch()
        assert await waiting == b"first\n"


async def test_a_command_waits_for_a_place(tmp_path: Path) -> None:
    """A command that is not admitted does not start; cancelled, it leaves nothing that is prepared."""
    gate, one = FullGate(), spec(tmp_path, "one")
    async with opened(tmp_path, gate) as provider, asyncio.timeout(SECONDS):
        waiting = asyncio.ensure_future(run(provider, one, "touch begun"))
        await gate.asked.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert one.workspace is not None
        assert list(one.workspace.iterdir()) == []
        assert len(provider.prewarmed) == 0


async def test_a_command_that_ends_in_a_pause_is_not_late(tmp_path: Path) -> None:
    """The event loop learns of the end and of the time-out at once: the exit code counts."""

    def pause(_stream: str, _content: bytes) -> None:
        time.sleep(LIMIT_SECONDS)

    request = ExecRequest(script="echo said; exit 3", timeout=LIMIT_SECONDS, on_output=pause)
    async with opened(tmp_path, CountingGate(is_contended=False)) as provider:
        sandbox = await provider.create(spec(tmp_path, "one"))
        result = await sandbox.run(request)
    assert (result.timed_out, result.exit_code, result.stdout) == (False, 3, b"said\n")


@pytest.mark.parametrize("is_contended", [False, True])
async def test_no_namespaces_are_prepared_while_commands_wait(tmp_path: Path, *, is_contended: bool) -> None:
    """Preparing takes the time of commands that wait. Each start gives its place back once."""
    gate = CountingGate(is_contended=is_contended)
    async with opened(tmp_path, gate) as provider:
        for script in ("true", "false"):
            await run(provider, spec(tmp_path, "one"), script)
        await provider.prewarmed.wait_prepared()
        assert len(provider.prewarmed) == (0 if is_contended else 1)
    assert gate.entered >= (2 if is_contended else 1)
    assert gate.held == 0
