"""The port of sandbox providers: what each guarantees and what it may rely on."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from sandbox.config import ConfigProblem, SandboxConfig
from sandbox.errors import FeatureUnsupported, SandboxGone
from sandbox.labels import key_of
from sandbox.model import (
    BackgroundJob,
    ExecRequest,
    ExecResult,
    JobReport,
    ResourceSupport,
    SandboxId,
    SandboxSpec,
)

CALLBACK_SOCKET = "callback.sock"
"""The name of a callback socket in its directory."""

EGRESS_SOCKET = "egress.sock"
"""The name, beside the callback socket, of the socket of the proxy for a restricted network."""

CA_BUNDLE = "ca-bundle.pem"
"""The name, beside the egress socket, of the certificates that programs behind the proxy trust."""

EGRESS_PORT = 3128
"""The port on the sandbox's loopback at which programs find the proxy."""

MAX_CREATIONS = 4
"""How often a provider looks for the sandbox of a label, or creates it, while others delete it."""

_SEARCHABLE = 0o711
"""The user of a container may differ from the gateway's; the parent directory is the gateway's alone."""


class Feature(StrEnum):
    """What a provider offers beyond running commands."""

    JOBS = "jobs"
    PERSISTENT = "persistent"
    SUSPEND = "suspend"
    RESTRICTED_NETWORK = "restricted_network"
    MOUNTS_WORKSPACE = "mounts_workspace"
    """The workspace store's directory is mounted; with other providers files are synced."""
    SYNCS_WORKSPACE = "carries_workspace"
    """Without a mount: an unreserved sandbox may have a workspace, synced in and out in each turn."""
    SNAPSHOT = "snapshot"
    """Files outside the workspace (HOME, the writable layer) can be saved and restored."""
    EXPOSE = "expose"
    """A port inside the sandbox can be reached by a URL."""
    CALLBACK = "callback"
    """A finished job can reach the gateway in every network mode, by a socket bound into the sandbox."""
    BIND_MOUNTS = "bind_mounts"
    """Directories of the machine can be mounted (`SandboxSpec.mounts`)."""
    EXTERNAL = "external"
    """A sandbox that somebody else created can be used (`Provider.attach`)."""
    LIVE_OUTPUT = "live_output"
    """The output of a command is passed on while it runs (`ExecRequest.on_output`)."""


class Sandbox(Protocol):
    """A running sandbox with its workspace.

    Each method also raises SandboxGone if the sandbox no longer exists, and ProviderUnreachable,
    ProviderUnauthorized or ProviderRefused if the provider cannot be used.
    """

    id: SandboxId

    @abstractmethod
    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a bash script in the workspace and wait for it.

        The environment is the spec's `env` and the runtime's fixed names only. On time-out and on
        cancellation every process of the command is dead before this returns. Output beyond the limits is
        dropped, never buffered. A time-out and an exit code other than 0 are results. Raises UnsafePath for a
        script that cannot be passed on: one with NUL, or one that is too long.
        """

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a background job, once per `job.id`; it outlives this object and this process. Feature JOBS.

        Raises UnsafePath as `run` does, and FeatureUnsupported by default.
        """
        del job
        raise FeatureUnsupported

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state and the last bytes of its output so far. Feature JOBS.

        An unknown id is a state. Raises FeatureUnsupported by default.
        """
        del job_id
        raise FeatureUnsupported

    async def stop(self, job_id: str) -> None:
        """Stop a job with its process tree: TERM, five seconds later KILL. Feature JOBS.

        Idempotent; an unknown id is no error. Raises FeatureUnsupported by default.
        """
        del job_id
        raise FeatureUnsupported

    @abstractmethod
    async def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a workspace file.

        Raises FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, and UnsafePath if
        the path leads out or is no regular file.
        """

    @abstractmethod
    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably, with fsync and its parent directories.

        Raises PermissionError in a read-only workspace, NotADirectoryError or IsADirectoryError if the path
        is blocked, and UnsafePath if it leads out.
        """

    async def suspend(self) -> None:
        """Suspend the sandbox and keep its files; any later call resumes it. Feature SUSPEND.

        Raises ProviderRefused while a job runs that keeps the sandbox awake, and FeatureUnsupported by
        default.
        """
        raise FeatureUnsupported

    async def keep_alive(self, seconds: float) -> None:
        """Reset the provider's own idle timer to so many seconds. Raises nothing if it has none."""
        del seconds

    async def expose(self, port: int) -> str:
        """Return a URL that reaches a TCP port inside. Feature EXPOSE.

        Raises ProviderRefused for a port that cannot be reached, and FeatureUnsupported by default.
        """
        del port
        raise FeatureUnsupported

    def save(self) -> AsyncIterator[bytes]:
        """Yield a gzip tar of the files outside the workspace. Feature SNAPSHOT.

        HOME is below `home/`; files of the writable layer are below `root/`, if the provider can save them.
        Raises FeatureUnsupported by default, and for a sandbox that has nothing to save.
        """
        raise FeatureUnsupported

    async def stamp(self) -> str | None:
        """Return a text that changes with what `save` packs, found without reading the files.

        None if it cannot be told: files were changed just now. Raises FeatureUnsupported by default.
        """
        raise FeatureUnsupported

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded; nothing leaves the sandbox. Feature SNAPSHOT.

        Raises FeatureUnsupported by default.
        """
        del archive
        raise FeatureUnsupported


class Provider(Protocol):
    """Creates sandboxes and connects to existing ones.

    Each method also raises ProviderUnreachable, ProviderUnauthorized or ProviderRefused if the provider
    cannot be used.
    """

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox labelled `spec.label`; create it if there is none.

        Raises ProviderRefused for a spec that cannot be met, and FeatureUnsupported if it needs a feature
        that the provider does not have.
        """

    @abstractmethod
    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox, created by any process; raises SandboxGone if there is none.

        Raises SandboxOutdated, and changes nothing, if it was made by another spec and could only be changed
        by what ends its jobs. With `spec.as_created` it is returned as it was made.
        """

    @abstractmethod
    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox with its processes and its files outside the workspace.

        Idempotent: raises nothing if it no longer exists.
        """

    @abstractmethod
    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return (id, label) of the sandboxes whose label begins with the prefix, suspended ones included.

        Raises nothing if there are none.
        """

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox `spec.external`, which was created outside of the gateway. Feature EXTERNAL.

        Its id is one of `sandbox.model.external_id`. Nothing about it is changed but its processes and files.
        Raises SandboxGone, ProviderRefused if it does not run or is a sandbox of a gateway, and
        FeatureUnsupported by default.
        """
        del spec
        raise FeatureUnsupported


@dataclass(kw_only=True)
class CallbackDirectories:
    """One directory below `root` for each sandbox, which a provider binds into that sandbox alone.

    The gateway listens on the socket `callback.sock` in it, on which it serves only the job-completion route.
    A directory exists as long as its sandbox: a bind mount keeps the directory that it was made with. The
    socket file is created again at every start of the gateway. A subclass listens; this class does not.
    """

    root: Path

    def directory(self, sandbox_id: str) -> Path:
        """Return the directory of a sandbox, the same in every process with the same root."""
        return self.root / key_of("callback", sandbox_id)

    def socket(self, sandbox_id: str) -> Path:
        """Return the path of a sandbox's socket on this machine."""
        return self.directory(sandbox_id) / CALLBACK_SOCKET

    def open(self, sandbox_id: str) -> None:
        """Create the directory of a sandbox. Idempotent."""
        directory = self.directory(sandbox_id)
        if not directory.is_dir():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(exist_ok=True)
            directory.chmod(_SEARCHABLE)

    def close(self, sandbox_id: str) -> None:
        """Remove the directory of a sandbox that no longer exists. Idempotent."""
        shutil.rmtree(self.directory(sandbox_id), ignore_errors=True)


class EgressProxies:
    """The proxies through which sandboxes with a restricted network reach what their record lists.

    The gateway listens on the socket `egress.sock` in the sandbox's callback directory. Opening again with
    another spec changes the lists. A subclass listens; this class does not.
    """

    def open(self, directory: Path, spec: SandboxSpec, *, proxied: bool = False) -> None:
        """Offer the proxy in the directory of a restricted sandbox, else close it. Idempotent.

        `proxied`: something in the sandbox began with a restriction, and has no other way out. If the spec
        allows all now, the proxy does too.
        """

    def close(self, directory: Path) -> None:
        """Close the proxy of a sandbox. Idempotent."""


class StartGate(Protocol):
    """Admits the starts of commands that use this machine's processors, fairly by account."""

    @property
    def is_contended(self) -> bool:
        """Return whether a command waits to start. Raises nothing."""
        ...

    async def enter(self) -> Callable[[], None]:
        """Wait until a command of the current task's account may start.

        Returns the function that gives the place back; call it once. Raises nothing.
        """
        ...


def proxy_environment(directory: Path, inside: str) -> dict[str, str]:
    """Return the variables by which programs in a sandbox find the proxy and its certificates.

    `directory` is the sandbox's callback directory on this machine, `inside` the same one in the sandbox.
    """
    url, local = f"http://127.0.0.1:{EGRESS_PORT}", "localhost,127.0.0.1,::1"
    found = {"http_proxy": url, "https_proxy": url, "no_proxy": local, "NODE_USE_ENV_PROXY": "1"}
    found |= {name.upper(): value for name, value in found.items()}
    if (directory / CA_BUNDLE).exists():
        found |= dict.fromkeys(_BUNDLE_VARIABLES, f"{inside}/{CA_BUNDLE}")
    return found


_BUNDLE_VARIABLES = (
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext:
    """The directories, URLs and hooks that the composition root passes to a provider.

    `state` is a directory for the provider alone. `callbacks` are the directories of the callback sockets,
    one for each sandbox; a provider that declares CALLBACK opens one with a sandbox and closes it with it.
    `egress` offers the proxies of sandboxes whose network is restricted, in the same directories.
    `executor` runs calls that wait for this machine's kernel or disk; None: the event loop's default one.
    `starts` limits how many commands start at once on this machine; None: no limit.
    `callback_url` is the public base URL for remote providers. `checkpoint(name)` is a fault point.
    """

    state: Path
    callbacks: CallbackDirectories
    callback_url: str = ""
    allow_unsandboxed: bool = False
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)
    egress: EgressProxies = field(default_factory=EgressProxies)
    executor: Executor | None = None
    starts: StartGate | None = None

    def open_sockets(self, sandbox_id: str, spec: SandboxSpec, *, proxied: bool = False) -> None:
        """Open the sockets by which a sandbox reaches the gateway; see `EgressProxies.open`. Idempotent."""
        self.callbacks.open(sandbox_id)
        self.egress.open(self.callbacks.directory(sandbox_id), spec, proxied=proxied)

    def close_sockets(self, sandbox_id: str) -> None:
        """Close the sockets of a sandbox that no longer exists and remove their directory. Idempotent."""
        self.egress.close(self.callbacks.directory(sandbox_id))
        self.callbacks.close(sandbox_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One capability that the provider has or lacks here, for `doctor` and tool descriptions."""

    name: str
    present: bool
    detail: str


async def create_one_of_label(find_or_create: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
    """Return the sandbox of a label that stays, where a service lets several processes create one each.

    Each of them deletes its own if it sees an older one, and takes that one. The other may be deleted in the
    same way in between: then this one looks again. Raises SandboxGone if that happens too often.
    """
    for _ in range(MAX_CREATIONS - 1):
        with suppress(SandboxGone):
            return await find_or_create()
    return await find_or_create()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPlugin:
    """The manifest of a provider; loading it does not import the provider's SDK.

    `check(config)` returns every problem of a sandbox config that only this provider knows.
    `open(settings, context)` is an async context manager that yields the Provider. `capabilities(settings)`
    returns what is available here (runtimes, isolation). `missing_runtimes(settings)` returns the runtimes of
    the contract that are known to be missing, without I/O to the provider. `inspect(settings)` finds out in
    advance what `open` needs to know about this machine: the gateway calls it in a thread while it starts.
    `resources` says which resource settings have an effect; records with others are refused.
    `on_this_machine` means that commands run on the gateway's host, where accounts share a kernel.
    """

    name: str
    title: str
    features: frozenset[Feature]
    resources: ResourceSupport
    settings: type[Any]
    check: Callable[[SandboxConfig], Sequence[ConfigProblem]]
    open: Callable[[Any, ProviderContext], AbstractAsyncContextManager[Provider]]
    capabilities: Callable[[Any], Sequence[Capability]]
    missing_runtimes: Callable[[Any], Sequence[str]] = lambda _settings: ()
    inspect: Callable[[Any], None] = lambda _settings: None
    max_timeout: int = 600
    max_memory_mb: int | None = None
    on_this_machine: bool = False
