"""The value types of sandboxes; all are frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NewType

SandboxId = NewType("SandboxId", str)
"""The provider's id of a sandbox, unique within the provider."""

_EXTERNAL = "external:"


def external_id(name: str, instance: str = "") -> SandboxId:
    """Return the id of a sandbox that Dovecote did not create; no provider gives its own such an id.

    `instance` differs if another sandbox takes the name over.
    """
    return SandboxId(f"{_EXTERNAL}{name}@{instance}" if instance else f"{_EXTERNAL}{name}")


def external_name(sandbox_id: str) -> str:
    """Return the name in an id of `external_id`."""
    return sandbox_id.removeprefix(_EXTERNAL).partition("@")[0]


def is_external(sandbox_id: str | None) -> bool:
    """Return whether an id is that of a sandbox which Dovecote did not create."""
    return sandbox_id is not None and sandbox_id.startswith(_EXTERNAL)


OUTPUT_CAP = 256 * 1024
"""Bytes of output that every provider keeps; the gateway may truncate further and marks it."""

DEFAULT_PIDS = 256
"""Processes and threads of a sandbox whose spec says nothing else."""


class Network(StrEnum):
    """The networks that a sandbox may reach."""

    DENY_ALL = "deny-all"
    ALLOW_ALL = "allow-all"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A directory of the machine that is visible in a sandbox."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The specification of a sandbox.

    `label` is the idempotency key: creating twice with one label gives one sandbox. `account` owns it; a
    provider may keep the sandboxes of accounts apart by it. `agent` is the agent that has the
    sandbox for itself, empty if agents share it. `workspace` is the
    directory of the workspace store that is mounted at `/mnt/workspaces/<namespace>`; None means an empty
    directory that is deleted after the run. `env` holds the declared variables; a run sees only these and the
    runtime's fixed ones. `memory_mb` and `pids` limit the whole sandbox. `idle_timeout` and `max_lifetime`
    (seconds) set the provider's own timers, later than ours, if it has any. `mounts` are directories of the
    machine that the operator allows, for a provider with the feature BIND_MOUNTS. With
    `services_sleep_with_sandbox`, services (`sandbox.lifecycle.services`) do not keep the sandbox awake.
    `external` is the provider's name or id of a sandbox that Dovecote did not create; it is used and never
    created, suspended or deleted (`sandbox.lifecycle.external`). With `as_created`, `connect` returns an
    existing sandbox also if the other fields have changed since: for the jobs in it, its files and its end.
    """

    label: str
    namespace: str
    account: str = ""
    agent: str = ""
    workspace: Path | None = None
    read_only: bool = False
    network: Network = Network.DENY_ALL
    allow_domains: tuple[str, ...] = ()
    allow_cidrs: tuple[str, ...] = ()
    memory_mb: int = 512
    pids: int = DEFAULT_PIDS
    cpus: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    persistent: bool = False
    idle_timeout: float = 900.0
    max_lifetime: float = 7 * 86400.0
    services_sleep_with_sandbox: bool = True
    mounts: tuple[BindMount, ...] = ()
    external: str = ""
    as_created: bool = False
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def mount(self) -> str:
        """Return the working directory inside the sandbox."""
        return f"/mnt/workspaces/{self.namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSupport:
    """For each resource setting None if the provider applies it, else what to do instead.

    A setting that a provider does not apply is refused in its sandbox records. No field has a default, so
    that each provider declares each setting.
    """

    memory_limit: str | None
    cpu: str | None
    memory_gb: str | None
    disk_gb: str | None
    persistent_disk_gb: str | None

    @classmethod
    def none(cls, remedy: str) -> ResourceSupport:
        """Return the declaration of a provider that applies no setting, with what to do instead."""
        return cls(**{one.name: remedy for one in fields(cls)})

    def refused(self, config: Any, provider: str) -> Iterator[tuple[str, str]]:
        """Yield pointer and detail of each setting of a `SandboxConfig` without effect there."""
        for one in fields(self):
            remedy = getattr(self, one.name)
            holder, below = (config, "") if one.name == "memory_limit" else (config.options, "/options")
            if remedy is not None and one.name in holder.model_fields_set:
                value, name = getattr(holder, one.name), type(holder).model_fields[one.name].alias or one.name
                if value is not None:
                    detail = f"{name} {value:g} would have no effect on {provider}: {remedy}"
                    yield f"{below}/{name}", detail


OutputListener = Callable[[str, bytes], None]
"""Receives `stdout` or `stderr` and a piece of that stream while a command runs; never waits or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """A bash script to run: `timeout` in seconds, `output_limit` in bytes for each stream.

    A provider that can passes the output that it keeps to `on_output` as it arrives; others never call it. A
    command that is repeated because its instance was gone may pass output twice.
    """

    script: str
    stdin: bytes = b""
    timeout: float = 120.0
    output_limit: int = 65536
    on_output: OutputListener | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of a command; a killed or timed-out command has exit code 128 + signal, or 137."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    duration_ms: int = 0
    runtime: str = "bash"

    @property
    def ok(self) -> bool:
        """Return whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """A background command. `id` is the idempotency key: spawning it twice starts it once.

    When it ends, the sandbox itself POSTs `{"exit_code", "output"}` to
    `/sandbox-jobs/<id>/complete` with `token` as bearer, over the provider's callback path, with retries
    and back-off for ten minutes. `output` is the last `output_limit` bytes of stdout and stderr, merged.

    With `sleeps_with_sandbox` the job does not keep the sandbox awake: it is suspended with it if the
    provider keeps processes, and ends with it otherwise.
    """

    id: str
    script: str
    token: str
    timeout: float = 0.0
    output_limit: int = OUTPUT_CAP
    sleeps_with_sandbox: bool = False


class BackgroundJobState(StrEnum):
    """The state of a job as the sandbox reports it."""

    RUNNING = "running"
    EXITED = "exited"
    RECREATED = "recreated"
    """The instance (boot id) that ran the job no longer exists, so the job has ended."""
    UNKNOWN = "unknown"
    """The sandbox has never been given a job with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job's state, its exit code once it is EXITED, and the last bytes of its output so far.

    With `over_quota` the job runs and the workspace exceeds its quota: the caller must stop the job. With
    `unrecorded` nothing recorded its exit code, because its supervisor is gone: the code is 137.
    """

    state: BackgroundJobState
    exit_code: int | None = None
    output: bytes = b""
    truncated: bool = False
    over_quota: bool = False
    unrecorded: bool = False
