"""A reserved host sandbox has its next namespaces prewarmed: only its speed differs."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.host.isolation.process_tree import descendants
from sandbox.host.provider import HostProvider
from sandbox.host.settings import HostSettings
from sandbox.model import ExecRequest, ExecResult, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext, Sandbox
from sandbox.registry import plugin


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    """A host provider; skipped where no sandbox can be made."""
    context = ProviderContext(
        state=tmp_path / "state", callbacks=CallbackDirectories(root=tmp_path / "callbacks")
    )
    for ability in plugin("host").capabilities(HostSettings()):
        if ability.name == "isolation" and not ability.present:
            pytest.skip(ability.detail)
    async with plugin("host").open(HostSettings(), context) as opened:
        yield opened


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    """A reserved sandbox with a workspace."""
    return SandboxSpec(
        label="one",
        namespace="space",
        workspace=tmp_path / "workspace",
        memory_mb=256,
        env={"DECLARED": "yes"},
        persistent=True,
    )


async def run(sandbox: Sandbox, script: str, stdin: bytes = b"", *, timeout: float = 20.0) -> ExecResult:
    """Run a script."""
    return await sandbox.run(ExecRequest(script=script, stdin=stdin, timeout=timeout))


async def prewarmed_count(provider: Provider) -> int:
    """Return how many runs of a provider wait for a command, once they have been started."""
    assert isinstance(provider, HostProvider)
    await provider.prewarmed.wait_prepared()
    return len(provider.prewarmed)


SCRIPTS = [
    ("echo out; echo err >&2; exit 3", b""),
    ("cat", b"some\0bytes\n"),
    ("cat; echo end", b""),
    ("env | grep -v '^_=' | sort; echo $0 $# $-; pwd; umask", b""),
    ("if", b""),
    ("echo 'two\nlines' \"$HOME\"; false", b""),
    ("kill -9 $$", b""),
    ("readlink /proc/self/fd/1 | cut -d: -f1; ls /proc/self/fd | wc -l", b""),
]


@pytest.mark.parametrize(("script", "stdin"), SCRIPTS, ids=range(len(SCRIPTS)))
async def test_a_run_that_waited_does_what_any_run_does(
    provider: Provider, spec: SandboxSpec, script: str, stdin: bytes
) -> None:
    """Output, exit code, stdin, environment and descriptors are those of a run made for its command."""
    sandbox = await provider.create(spec)
    assert await prewarmed_count(provider) == 0
    cold = await run(sandbox, script, stdin)
    assert await prewarmed_count(provider) == 1
    warm = await run(sandbox, script, stdin)
    assert (warm.exit_code, warm.stdout, warm.stderr) == (cold.exit_code, cold.stdout, cold.stderr)


async def test_a_run_that_waited_is_bounded_like_any(provider: Provider, spec: SandboxSpec) -> None:
    """Time-out and caps hold from the moment it has its command, and nothing of it lives on."""
    sandbox = await provider.create(spec)
    await run(sandbox, "true")
    slow = await run(sandbox, "sleep 60 & setsid sleep 60", timeout=0.3)
    assert (slow.timed_out, slow.exit_code) == (True, 137)
    capped = await sandbox.run(ExecRequest(script="yes | head -c 100000", output_limit=10))
    assert (len(capped.stdout), capped.stdout_truncated) == (10, True)
    lasting = await run(sandbox, "echo kept > $HOME/note; touch /tmp/gone")
    assert lasting.ok
    assert (await run(sandbox, "cat $HOME/note; ls /tmp")).stdout == b"kept\n"


async def test_what_waits_is_not_used_for_something_else(provider: Provider, spec: SandboxSpec) -> None:
    """Another spec, another workspace directory of the same name, a long script: a new run is made."""
    sandbox = await provider.create(spec)
    await run(sandbox, "echo old > file")
    assert spec.workspace is not None
    shutil.rmtree(spec.workspace)
    spec.workspace.mkdir()
    assert (await run(sandbox, "ls")).stdout == b""
    other = SandboxSpec(
        **{name: getattr(spec, name) for name in spec.__dataclass_fields__} | {"env": {"NEW": "1"}}
    )
    assert (await run(await provider.connect(sandbox.id, other), "echo $NEW$DECLARED")).stdout == b"1\n"
    long = f"echo {'x' * 5000} | wc -c"
    assert (await run(sandbox, long)).stdout == b"5001\n"


async def test_nothing_waits_in_a_sandbox_that_sleeps_or_is_gone(
    provider: Provider, spec: SandboxSpec
) -> None:
    """Suspended or destroyed, no process is left of it; one that is not reserved has none waiting ever."""
    before = _sandbox_processes()
    sandbox = await provider.create(spec)
    await run(sandbox, "true")
    await sandbox.suspend()
    assert await prewarmed_count(provider) == 0
    await run(sandbox, "true")
    await provider.destroy(sandbox.id)
    assert await prewarmed_count(provider) == 0
    passing = SandboxSpec(label="two", namespace="space")
    await run(await provider.create(passing), "true")
    assert await prewarmed_count(provider) == 0
    assert _sandbox_processes() <= before


def _sandbox_processes() -> set[int]:
    """Return the processes of sandboxes below this one, also those that an earlier test has left."""
    return {pid for pid in descendants(os.getpid()) if b"bwrap" in _command_line(pid)}


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""
