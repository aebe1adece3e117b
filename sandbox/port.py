"""The door to sandbox providers: what one promises and what it may rely on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from sandbox.config import ConfigProblem, SandboxConfig
from sandbox.errors import FeatureUnsupported
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId, SandboxSpec


class Feature(StrEnum):
    """What a provider can do beyond running commands."""

    JOBS = "jobs"
    PERSISTENT = "persistent"
    SUSPEND = "suspend"
    RESTRICTED_NETWORK = "restricted_network"
    MOUNTS_WORKSPACE = "mounts_workspace"
    """The workspace store's directory itself is mounted; elsewhere files are carried there and back."""
    SYNCS_WORKSPACE = "carries_workspace"
    """Without a mount: a sandbox that is not reserved may have a workspace, carried in and out each turn."""
    SNAPSHOT = "snapshot"
    """What lies outside the workspace (HOME, the writable layer) can be saved and restored."""
    EXPOSE = "expose"
    """A port inside can be reached by a URL."""
    CALLBACK = "callback"
    """A finished job can tell the gateway whatever the network mode (a socket bound into the sandbox)."""


class Sandbox(Protocol):
    """A live machine on a workspace."""

    id: SandboxId

    @abstractmethod
    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a bash script in the workspace and wait for it.

        The environment is the spec's `env` and the runtime's fixed names, nothing else. On time-out and on
        cancellation of the caller every process the command started is dead before this returns. Output
        beyond the limits is dropped, never buffered. Raises Gone, Unreachable, Refused.
        """

    @abstractmethod
    async def spawn(self, job: BackgroundJob) -> None:
        """Start a detached job, once per `job.id`; it outlives this object and this process."""

    @abstractmethod
    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing; output is readable while it runs."""

    @abstractmethod
    async def stop(self, job_id: str) -> None:
        """End a job: TERM, five seconds later KILL, the whole tree; ending it twice is no error."""

    @abstractmethod
    async def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a workspace file; raises Unsafe, FileNotFoundError."""

    @abstractmethod
    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably (parents made, fsync); raises Unsafe."""

    @abstractmethod
    async def suspend(self) -> None:
        """Stop costing, keep the files; any later call wakes it. Refused while a job runs that does not rest.

        Feature SUSPEND.
        """

    async def keep_alive(self, seconds: float) -> None:
        """Ask the provider's own idle timers, where it has any, to leave the sandbox alone for so long."""
        del seconds

    async def expose(self, port: int) -> str:
        """Return a URL that reaches a TCP port inside. Feature EXPOSE."""
        del port
        raise FeatureUnsupported

    def save(self) -> AsyncIterator[bytes]:
        """Yield a gzip tar of what the workspace store does not keep: HOME under `home/`, what the provider
        can of the writable layer under `root/`. Feature SNAPSHOT."""
        raise FeatureUnsupported

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded: no path, link or device leaves the sandbox. Feature SNAPSHOT."""
        del archive
        raise FeatureUnsupported


class Provider(Protocol):
    """Makes sandboxes and finds them again."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox labelled `spec.label`, making it when there is none."""

    @abstractmethod
    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox, from any process; raises Gone."""

    @abstractmethod
    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox with its processes and files outside the workspace; twice is no error."""

    @abstractmethod
    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return (id, label) of the sandboxes whose label starts so, the suspended ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext:
    """What the composition root gives a provider to stand on.

    `state` is a directory of the provider's own. `callbacks` is a directory that holds the unix socket
    `callback.sock`, served by the gateway with the job-completion route and nothing else (host, docker);
    the directory outlives the socket file, which is remade at every start. `callback_url` is the public
    base URL for providers elsewhere. `checkpoint(name)` is a fault point.
    """

    state: Path
    callbacks: Path
    callback_url: str = ""
    allow_unsandboxed: bool = False
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing the provider has or lacks here, for `doctor` and tool descriptions."""

    name: str
    present: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPlugin:
    """The manifest of a provider: known without importing its SDK.

    `check(config)` returns every problem of an account's sandbox config that is this provider's to judge.
    `open(settings, surroundings)` is an async context manager that yields the Provider. `abilities(settings)`
    says what this machine offers (runtimes, isolation). `lacking(settings)` names the contract's runtimes
    that are known to be missing there, at once and without asking anybody. `on_this_machine`: commands
    run where the gateway runs, so that accounts share more than a provider.
    """

    name: str
    title: str
    features: frozenset[Feature]
    settings: type[Any]
    check: Callable[[SandboxConfig], Sequence[ConfigProblem]]
    open: Callable[[Any, ProviderContext], AbstractAsyncContextManager[Provider]]
    capabilities: Callable[[Any], Sequence[Capability]]
    missing_runtimes: Callable[[Any], Sequence[str]] = lambda _settings: ()
    max_timeout: int = 600
    max_memory_mb: int | None = None
    on_this_machine: bool = False
