"""The host provider: a sandbox is a directory of the gateway, found again by its label's key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.exec.shielded import shielded_call
from sandbox.host.isolation import bubblewrap, cgroups, network, root_filesystem, runtimes
from sandbox.host.isolation.cgroups import CgroupLayout
from sandbox.host.jobs.jobs import HostJobs
from sandbox.host.run.host_environment import HostEnvironment, SandboxPaths
from sandbox.host.run.prewarmed import PrewarmedRuns
from sandbox.host.run.running_commands import RunningCommands
from sandbox.host.sandbox import HostSandbox
from sandbox.host.settings import HostSettings
from sandbox.labels import key_of
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.port import Provider, ProviderContext, Sandbox
from sandbox.workspaces.local_files import write_durably
from sandbox.workspaces.removal import remove_tree

_TRIES, _PAUSE = 20, 0.01

_log = structlog.get_logger(__name__)

_PLAIN_PROCESSES = "COMMANDS RUN AS PLAIN PROCESSES OF THIS HOST: no sandbox around them"
_NO_NETWORK = "sandboxes with network.mode allow-all are refused: they would share this host's network"


class HostProvider(Provider):
    """Sandboxes on the gateway's own host; `unavailable_reason` says why none can be created here.

    This host is inspected again when it lacked what a spec needs: for a moment it may have had no more
    processes, or the operator has mended it.
    """

    def __init__(self, host: HostEnvironment, unavailable_reason: str | None) -> None:
        self._host = host
        self._unavailable_reason = unavailable_reason
        self._directory = host.context.state / "sandboxes"
        self.prewarmed = PrewarmedRuns()
        self._running = RunningCommands()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create the sandbox's directories; the label is written last and makes the sandbox exist."""
        await self._check(spec)
        sandbox_id = SandboxId(f"host-{key_of('sandbox', spec.label)}")
        paths = self._paths(sandbox_id)
        self._host.context.open_sockets(sandbox_id, spec)
        sandbox = self._sandbox(sandbox_id, spec, paths)
        await shielded_call(self._host.context.executor, self._create, sandbox, paths, spec)
        return sandbox

    def _create(self, sandbox: HostSandbox, paths: SandboxPaths, spec: SandboxSpec) -> None:
        """Create the sandbox's directories and control groups, in a thread."""
        for directory in (paths.jobs, paths.home, paths.scratch):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if spec.workspace is not None:
            spec.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._host.context.checkpoint("sandbox.create")
        sandbox.set_limits()
        if not paths.label.exists():
            write_durably(paths.label, spec.label.encode("utf-8", "surrogatepass"))

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox created by any process with the same state directory."""
        await self._check(spec)
        paths = self._paths(sandbox_id)
        if not paths.label.exists():
            raise SandboxGone
        sandbox = self._sandbox(sandbox_id, spec, paths)
        await shielded_call(self._host.context.executor, sandbox.apply_limits)
        is_open = spec.network is Network.ALLOW_ALL
        proxied = is_open and await asyncio.to_thread(HostJobs(host=self._host, paths=paths).has_proxied)
        self._host.context.open_sockets(sandbox_id, spec, proxied=proxied)
        return sandbox

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Stop the sandbox's commands and jobs and remove its directories; the workspace stays."""
        paths = self._paths(sandbox_id)
        paths.label.unlink(missing_ok=True)
        await self.prewarmed.stop(sandbox_id)
        await self._running.kill(sandbox_id)
        await HostJobs(host=self._host, paths=paths).kill_all()
        await _retry_until(self._host, partial(cgroups.remove_sandbox, self._host.layout, sandbox_id))
        self._host.context.close_sockets(sandbox_id)
        await asyncio.to_thread(remove_tree, paths.directory)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes of this state directory."""
        found = []
        for label in sorted(self._directory.glob("*/label")):
            text = label.read_bytes().decode("utf-8", "surrogatepass")
            if text.startswith(label_prefix):
                found.append((SandboxId(label.parent.name), text))
        return found

    def _sandbox(self, sandbox_id: SandboxId, spec: SandboxSpec, paths: SandboxPaths) -> HostSandbox:
        return HostSandbox(
            sandbox_id, spec, self._host, paths, prewarmed=self.prewarmed, running=self._running
        )

    def _paths(self, sandbox_id: SandboxId) -> SandboxPaths:
        if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
            raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")
        callbacks = self._host.context.callbacks.directory(sandbox_id)
        return SandboxPaths(directory=self._directory / sandbox_id, callbacks=callbacks)

    async def _check(self, spec: SandboxSpec) -> None:
        if self._is_unavailable(spec):
            await self._inspect_again()
        self._check_host(spec)
        _check_names(spec)

    def _check_host(self, spec: SandboxSpec) -> None:
        if self._unavailable_reason is not None:
            raise ProviderRefused(
                f"no sandbox can be created on this host: {self._unavailable_reason}; {bubblewrap.REMEDY}"
            )
        if spec.network is Network.RESTRICTED and self._host.restriction_problem is not None:
            raise ProviderRefused(
                f"network.mode restricted is not possible on this host: {self._host.restriction_problem}"
            )
        if spec.network is Network.ALLOW_ALL and not self._host.may_connect:
            raise ProviderRefused(
                "network.mode allow-all is not possible on this host, because the sandbox would share the "
                f"host's network: {self._host.networking.detail}; {network.REMEDY}"
            )
        if spec.mounts and self._host.binary is None:
            raise ProviderRefused("commands are plain processes on this host, which have no mounts")

    def _is_unavailable(self, spec: SandboxSpec) -> bool:
        needs_network = spec.network is Network.ALLOW_ALL
        return self._unavailable_reason is not None or (needs_network and not self._host.may_connect)

    async def _inspect_again(self) -> None:
        binary, problem, networking = await _inspected(self._host.settings)
        self._host = replace(self._host, binary=binary, networking=networking)
        self._unavailable_reason = problem


def _check_names(spec: SandboxSpec) -> None:
    if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
        raise ProviderRefused("the namespace must be one plain path component")
    for name, value in spec.env.items():
        if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
            raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")


async def _inspected(settings: HostSettings) -> tuple[Path | None, str | None, network.Networking]:
    """Return the bwrap of this host, why it makes no sandboxes, and what connects them."""
    binary = await asyncio.to_thread(bubblewrap.find, settings.bubblewrap)
    problem, networking = await asyncio.gather(
        asyncio.to_thread(bubblewrap.probe, binary), asyncio.to_thread(find_network, settings)
    )
    return binary, problem, networking


def find_network(settings: HostSettings) -> network.Networking:
    """Return what this host offers for networked sandboxes; the first call tests it for 0.1 s."""
    binary = bubblewrap.find(settings.bubblewrap)
    return network.find_for(settings, bubblewrap.probe_command(binary or Path("bwrap")))


@asynccontextmanager
async def open_provider(settings: HostSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Inspect the host, remove what dead processes left, and yield the provider."""
    context.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    binary, problem, networking = await _inspected(settings)
    plain = problem is not None and context.allow_unsandboxed
    layout = _layout(settings, context.state)
    host = HostEnvironment(
        settings=settings,
        context=context,
        layout=layout,
        binary=None if plain else binary,
        runtimes=tuple(runtimes.find(settings.runtime_directories)),
        networking=networking,
    )
    root_filesystem.write_etc(host.etc)
    _warn(host, problem, plain=plain)
    provider = HostProvider(host, None if plain else problem)
    try:
        yield provider
    finally:
        await provider.prewarmed.close()
        await _retry_until(host, partial(cgroups.remove_all, layout))


async def _retry_until(host: HostEnvironment, is_gone: Callable[[], bool]) -> None:
    """Try to remove control groups for a moment: killed processes need time to leave them."""
    for _ in range(_TRIES):
        if await shielded_call(host.context.executor, is_gone):
            return
        await asyncio.sleep(_PAUSE)


def cgroup_tag(state: Path) -> str:
    """Return the name of our control groups: one for each state directory."""
    return f"dovecote-{key_of('state', str(state.resolve()))[:12]}"


def _layout(settings: HostSettings, state: Path) -> CgroupLayout:
    if not settings.cgroups:
        return CgroupLayout()
    layout = cgroups.probe(cgroup_tag(state))
    sandboxes = state / "sandboxes"
    cgroups.sweep(layout, frozenset(path.name for path in sandboxes.glob("*")))
    return layout


def _warn(host: HostEnvironment, error: str | None, *, plain: bool) -> None:
    if plain:
        _log.warning("sandbox.isolation_disabled", detail=_PLAIN_PROCESSES, because=error)
    elif error is not None:
        detail = "no sandbox can be created on this host"
        _log.warning("sandbox.isolation_unavailable", detail=detail, because=error, remedy=bubblewrap.REMEDY)
    if not host.networking.isolated:
        _log.warning("sandbox.network_unavailable", detail=_NO_NETWORK, because=host.networking.detail)
    absent = [name for name in ("memory", "pids") if name not in host.layout]
    if absent:
        detail = "no control groups for sandboxes: limits apply to each process, not to the sandbox"
        _log.warning("sandbox.cgroups_missing", detail=detail, missing=absent)
