"""The smallest sandbox provider: everything in memory, `run` knows a handful of words.

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

from sandbox.config import Problem, SandboxConfig
from sandbox.errors import Gone, Refused
from sandbox.model import Command, Job, JobReport, JobState, Result, SandboxId, Spec
from sandbox.port import Ability, Feature, Provider, ProviderPlugin, Sandbox, Surroundings


class MemorySettings(BaseModel):
    """`[sandbox.memory]`: there is nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(kw_only=True)
class Machine:
    """What outlives the objects that stand for it."""

    label: str
    files: dict[str, bytes] = field(default_factory=dict)
    home: dict[str, bytes] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    asleep: bool = False
    kept_alive: asyncio.Event = field(default_factory=asyncio.Event)


class MemorySandbox(Sandbox):
    """One machine; any call wakes it."""

    def __init__(self, sandbox_id: SandboxId, machines: dict[SandboxId, Machine]) -> None:
        self.id = sandbox_id
        self._machines = machines

    @property
    def _machine(self) -> Machine:
        if self.id not in self._machines:
            raise Gone
        return self._machines[self.id]

    def _awake(self) -> Machine:
        self._machine.asleep = False
        return self._machine

    async def run(self, command: Command) -> Result:
        """Know `echo WORDS`, `keep NAME TEXT` (in HOME) and `kept NAME`."""
        machine = self._awake()
        verb, _, rest = command.script.partition(" ")
        if verb == "echo":
            return Result(exit_code=0, stdout=f"{rest}\n".encode(), stderr=b"")
        if verb == "keep":
            name, _, text = rest.partition(" ")
            machine.home[name] = text.encode()
            return Result(exit_code=0, stdout=b"", stderr=b"")
        if verb == "kept" and rest in machine.home:
            return Result(exit_code=0, stdout=machine.home[rest], stderr=b"")
        return Result(exit_code=127, stdout=b"", stderr=f"{verb}: not found\n".encode())

    async def spawn(self, job: Job) -> None:
        """Take a job, once; it runs until it is stopped."""
        self._awake().jobs.setdefault(job.id, job)

    async def report(self, job_id: str) -> JobReport:
        """Say whether the job is known."""
        known = job_id in self._awake().jobs
        return JobReport(state=JobState.RUNNING if known else JobState.UNKNOWN)

    async def stop(self, job_id: str) -> None:
        """End a job."""
        self._awake().jobs.pop(job_id, None)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return a file."""
        if path not in self._awake().files:
            raise FileNotFoundError(path)
        return self._machine.files[path][:limit]

    async def write(self, path: str, content: bytes) -> None:
        """Keep a file."""
        self._awake().files[path] = content

    async def suspend(self) -> None:
        """Sleep, unless a job runs that does not rest."""
        if any(not job.rests for job in self._machine.jobs.values()):
            raise Refused("a job runs")
        self._machine.asleep = True

    async def keep_alive(self, seconds: float) -> None:
        """Note that somebody still needs it."""
        del seconds
        self._machine.kept_alive.set()

    async def save(self) -> AsyncIterator[bytes]:
        """Yield HOME as a gzip tar."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as tar,
        ):
            for name, content in sorted(self._awake().home.items()):
                member = tarfile.TarInfo(f"home/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        yield packed.getvalue()

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Take HOME from a gzip tar."""
        machine = self._awake()
        packed = b"".join([chunk async for chunk in archive])
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for member in tar.getmembers():
                content = tar.extractfile(member)
                machine.home[member.name.removeprefix("home/")] = content.read() if content else b""


class MemoryProvider(Provider):
    """Machines in a dictionary; `made` counts those there ever were."""

    def __init__(self) -> None:
        self.machines: dict[SandboxId, Machine] = {}
        self.made = 0

    async def create(self, spec: Spec) -> Sandbox:
        """Return the machine of this label, made when there is none."""
        for sandbox_id, machine in self.machines.items():
            if machine.label == spec.label:
                return MemorySandbox(sandbox_id, self.machines)
        self.made += 1
        fresh = SandboxId(f"memory-{self.made}")
        self.machines[fresh] = Machine(label=spec.label)
        return MemorySandbox(fresh, self.machines)

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return a machine that is there."""
        del spec
        if sandbox_id not in self.machines:
            raise Gone
        return MemorySandbox(sandbox_id, self.machines)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Forget a machine."""
        self.machines.pop(sandbox_id, None)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the machines by label."""
        found = self.machines.items()
        return [(one, machine.label) for one, machine in found if machine.label.startswith(label_prefix)]


def _check(config: SandboxConfig) -> Sequence[Problem]:
    if config.network.mode != "deny-all":
        return [Problem(pointer="/network/mode", detail="there is no network in memory: deny-all only")]
    return []


@asynccontextmanager
async def _opened(settings: Any, surroundings: Surroundings) -> AsyncIterator[Provider]:
    del settings, surroundings
    yield MemoryProvider()


plugin = ProviderPlugin(
    name="memory",
    title="Nothing but memory",
    features=frozenset({Feature.PERSISTENT, Feature.SUSPEND, Feature.SNAPSHOT, Feature.JOBS}),
    settings=MemorySettings,
    check=_check,
    open=_opened,
    abilities=lambda _settings: [Ability(name="isolation", present=False, detail="a dictionary")],
)
