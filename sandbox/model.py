"""The words of sandboxes; all values are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NewType

SandboxId = NewType("SandboxId", str)
"""The provider's own name of a sandbox, unique within the provider."""

OUTPUT_CAP = 256 * 1024
"""Bytes of output that any provider keeps at the source; the gateway may cut further and says so."""


class Network(StrEnum):
    """What a sandbox may reach."""

    DENY_ALL = "deny-all"
    ALLOW_ALL = "allow-all"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is made of.

    `label` is our idempotency key: creating twice with one label gives one sandbox. `workspace` is the
    directory of the workspace store that is mounted at `/mnt/workspaces/<namespace>` (None: no workspace,
    an empty directory that dies with the run). `env` holds the declared variables and nothing else reaches
    a run but the runtime's own fixed ones. `memory_mb` and `pids` bound the whole sandbox. `idle_timeout` and
    `max_lifetime` (seconds) are what a provider's own timers are set to, beyond ours, where it has any.
    `services_rest`: what is kept running in it (`sandbox.lifecycle.services`) does not keep it awake.
    """

    label: str
    namespace: str
    workspace: Path | None = None
    read_only: bool = False
    network: Network = Network.DENY_ALL
    allow_domains: tuple[str, ...] = ()
    allow_cidrs: tuple[str, ...] = ()
    memory_mb: int = 512
    pids: int = 256
    cpus: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    persistent: bool = False
    idle_timeout: float = 900.0
    max_lifetime: float = 7 * 86400.0
    services_sleep_with_sandbox: bool = True
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def mount(self) -> str:
        """The working directory inside the sandbox."""
        return f"/mnt/workspaces/{self.namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One bash script to run: `timeout` in seconds, `output_limit` in bytes for each stream."""

    script: str
    stdin: bytes = b""
    timeout: float = 120.0
    output_limit: int = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What came of a Command. A killed or timed-out command has exit code 128 + signal, or 137."""

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
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """A command to run detached. `id` is the idempotency key: spawning it twice starts it once.

    When it ends, the sandbox itself POSTs `{"exit_code", "output"}` to
    `/sandbox-jobs/<id>/complete` with `token` as bearer, over the provider's callback path, retried with
    back-off for ten minutes. `output` is stdout and stderr merged, its last `output_limit` bytes.

    `rests`: nobody waits for its end, so it does not keep the sandbox awake: it sleeps with it where the
    provider keeps processes, and ends with it elsewhere.
    """

    id: str
    script: str
    token: str
    timeout: float = 0.0
    output_limit: int = OUTPUT_CAP
    sleeps_with_sandbox: bool = False


class BackgroundJobState(StrEnum):
    """What the sandbox says of a job it was given."""

    RUNNING = "running"
    EXITED = "exited"
    RECREATED = "recreated"
    """The machine (boot id) the job ran on is gone, and the job with it."""
    UNKNOWN = "unknown"
    """This sandbox has never been given a job of that id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job's state, its exit code once EXITED, and the last bytes of its output so far.

    `overfull`: it runs, and the workspace holds more than it may. Whoever asked is to end it, knowing why.
    """

    state: BackgroundJobState
    exit_code: int | None = None
    output: bytes = b""
    truncated: bool = False
    over_quota: bool = False
