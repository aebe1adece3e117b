"""The smallest sandbox provider: everything is in memory, and `run` has three commands.

It needs nothing of the repository but its entry point; see docs/guide/sandboxes/writing-a-provider.md.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from sandbox.config import ConfigProblem, SandboxConfig
from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.model import (
    BackgroundJob,
    BackgroundJobState,
    ExecRequest,
    ExecResult,
    JobReport,
    ResourceSupport,
    SandboxId,
    SandboxSpec,
)
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin, Sandbox


class MemoryProviderSettings(BaseModel):
    """`[sandbox.memory]`: there is nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(kw_only=True)
class MemoryInstance:
    """The state that outlives the objects that represent a sandbox."""

    label: str
    files: dict[str, bytes] = field(default_factory=dict)
    home: dict[str, bytes] = field(default_factory=dict)
    jobs: dict[str, BackgroundJob] = field(default_factory=dict)
    suspended: bool = False
    kept_alive: asyncio.Event = field(default_factory=asyncio.Event)


class MemorySandbox(Sandbox):
    """One instance; any call wakes it."""

    def __init__(self, sandbox_id: SandboxId, instances: dict[SandboxId, MemoryInstance]) -> None:
        self.id = sandbox_id
        self._instances = instances

    @property
    def _instance(self) -> MemoryInstance:
        if self.id not in self._instances:
            raise SandboxGone
        return self._instances[self.id]

    def _wake(self) -> MemoryInstance:
        self._instance.suspended = False
        return self._instance

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run `echo WORDS`, `keep NAME TEXT` (writes a file in HOME) and `kept NAME` (prints it)."""
        instance = self._wake()
        verb, _, rest = command.script.removeprefix("exec 2>&1; ").partition(" ")
        if verb == "echo":
            return ExecResult(exit_code=0, stdout=f"{rest}\n".encode(), stderr=b"")
        if verb == "keep":
            name, _, text = rest.partition(" ")
            instance.home[name] = text.encode()
            return ExecResult(exit_code=0, stdout=b"", stderr=b"")
        if verb == "kept" and rest in instance.home:
            return ExecResult(exit_code=0, stdout=instance.home[rest], stderr=b"")
        return ExecResult(exit_code=127, stdout=b"", stderr=f"{verb}: not found\n".encode())

    async def spawn(self, job: BackgroundJob) -> None:
        """Take a job, once; it runs until it is stopped."""
        self._wake().jobs.setdefault(job.id, job)

    async def report(self, job_id: str) -> JobReport:
        """Say whether the job is known."""
        known = job_id in self._wake().jobs
        return JobReport(state=BackgroundJobState.RUNNING if known else BackgroundJobState.UNKNOWN)

    async def stop(self, job_id: str) -> None:
        """End a job."""
        self._wake().jobs.pop(job_id, None)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return a file."""
        if path not in self._wake().files:
            raise FileNotFoundError(path)
        return self._instance.files[path][:limit]

    async def write(self, path: str, content: bytes) -> None:
        """Keep a file."""
        self._wake().files[path] = content

    async def suspend(self) -> None:
        """Sleep, unless a job runs that does not rest."""
        if any(not job.sleeps_with_sandbox for job in self._instance.jobs.values()):
            raise ProviderRefused("a job runs")
        self._instance.suspended = True

    async def keep_alive(self, seconds: float) -> None:
        """Record that the sandbox is still needed."""
        del seconds
        self._instance.kept_alive.set()

    async def save(self) -> AsyncIterator[bytes]:
        """Yield HOME as a gzip tar."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as tar,
        ):
            for name, content in sorted(self._wake().home.items()):
                member = tarfile.TarInfo(f"home/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        yield packed.getvalue()

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Take HOME from a gzip tar."""
        instance = self._wake()
        packed = b"".join([chunk async for chunk in archive])
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for member in tar.getmembers():
                content = tar.extractfile(member)
                instance.home[member.name.removeprefix("home/")] = content.read() if content else b""


class MemoryProvider(Provider):
    """Machines in a dictionary; `made` counts those there ever were."""

    def __init__(self) -> None:
        self.instances: dict[SandboxId, MemoryInstance] = {}
        self.created_count = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the instance of this label, created if missing."""
        for sandbox_id, instance in self.instances.items():
            if instance.label == spec.label:
                return MemorySandbox(sandbox_id, self.instances)
        self.created_count += 1
        fresh = SandboxId(f"memory-{self.created_count}")
        self.instances[fresh] = MemoryInstance(label=spec.label)
        return MemorySandbox(fresh, self.instances)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing instance."""
        del spec
        if sandbox_id not in self.instances:
            raise SandboxGone
        return MemorySandbox(sandbox_id, self.instances)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete an instance."""
        self.instances.pop(sandbox_id, None)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the instances by label."""
        found = self.instances.items()
        return [(one, instance.label) for one, instance in found if instance.label.startswith(label_prefix)]


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    if config.network.mode != "deny-all":
        return [ConfigProblem(pointer="/network/mode", detail="there is no network in memory: deny-all only")]
    return []


@asynccontextmanager
async def _open(settings: Any, context: ProviderContext) -> AsyncIterator[Provider]:
    del settings, context
    yield MemoryProvider()


plugin = ProviderPlugin(
    name="memory",
    title="Nothing but memory",
    features=frozenset({Feature.PERSISTENT, Feature.SUSPEND, Feature.SNAPSHOT, Feature.JOBS}),
    resources=ResourceSupport.none("there is nothing to limit: leave it out"),
    settings=MemoryProviderSettings,
    check=_check,
    open=_open,
    capabilities=lambda _settings: [Capability(name="isolation", present=False, detail="a dictionary")],
)
