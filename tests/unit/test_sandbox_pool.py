"""Getting hold of sandboxes: reuse, reconnect, create, and one more try when one is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandbox.errors import Gone, Unreachable
from sandbox.model import Command, Job, JobReport, JobState, Result, SandboxId, Spec
from sandbox.pool import Pool
from sandbox.port import Provider, Sandbox

SPEC = Spec(label="one", namespace="space")


class Shelf(Sandbox):
    """A sandbox that only knows its name."""

    def __init__(self, sandbox_id: SandboxId) -> None:
        self.id = sandbox_id

    async def run(self, command: Command) -> Result:
        """Succeed."""
        return Result(exit_code=0, stdout=command.stdin, stderr=b"")

    async def spawn(self, job: Job) -> None:
        """Do nothing."""

    async def report(self, job_id: str) -> JobReport:
        """Know no job."""
        return JobReport(state=JobState.UNKNOWN)

    async def stop(self, job_id: str) -> None:
        """Do nothing."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Have no file."""
        raise FileNotFoundError(path)

    async def write(self, path: str, content: bytes) -> None:
        """Keep nothing."""

    async def suspend(self) -> None:
        """Do nothing."""


class Shelves(Provider):
    """A provider that counts, and knows the sandboxes in `alive`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.alive: set[SandboxId] = set()

    async def create(self, spec: Spec) -> Sandbox:
        """Make a sandbox with a new id."""
        self.calls.append("create")
        made = Shelf(SandboxId(f"{spec.label}-{len(self.calls)}"))
        self.alive.add(made.id)
        return made

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Find a sandbox that is alive."""
        self.calls.append("connect")
        if sandbox_id not in self.alive:
            raise Gone
        return Shelf(sandbox_id)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Forget a sandbox."""
        self.alive.discard(sandbox_id)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """List nothing."""
        return []


async def test_an_open_sandbox_is_used_again() -> None:
    """The same spec twice is one sandbox; a changed spec reconnects to it."""
    provider = Shelves()
    pool = Pool(provider)
    first = await pool.acquire(SPEC)
    assert await pool.acquire(SPEC) is first
    changed = await pool.acquire(Spec(label="one", namespace="space", env={"A": "1"}))
    assert changed.id == first.id
    assert provider.calls == ["create", "connect"]


async def test_a_known_sandbox_is_reconnected_and_a_dead_one_made_anew() -> None:
    """An id from an earlier process is tried first; when it is gone there is a new one."""
    provider = Shelves()
    provider.alive.add(SandboxId("old"))
    assert (await Pool(provider).acquire(SPEC, SandboxId("old"))).id == "old"
    assert (await Pool(provider).acquire(SPEC, SandboxId("older"))).id != "older"
    assert provider.calls == ["connect", "connect", "create"]


async def test_gone_is_tried_exactly_once_more() -> None:
    """A function that finds its sandbox gone runs again on a new one, and not a third time."""
    provider = Shelves()
    seen: list[SandboxId] = []

    async def fail(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)
        raise Gone

    with pytest.raises(Gone):
        await Pool(provider).with_sandbox(SPEC, fail)
    assert len(seen) == len(set(seen)) == 2


async def test_other_errors_pass_at_once() -> None:
    """Anything but Gone propagates from the first call."""
    calls = 0

    async def fail(_sandbox: Sandbox) -> None:
        nonlocal calls
        calls += 1
        raise Unreachable

    with pytest.raises(Unreachable):
        await Pool(Shelves()).with_sandbox(SPEC, fail)
    assert calls == 1
