"""The host provider: sandboxes are directories of the gateway's own, found again by their label's key."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog

from sandbox.config import LOADERS, NAME
from sandbox.errors import Gone, Refused, Unsupported
from sandbox.host.isolation import bubblewrap, cgroups, network, root_filesystem, runtimes
from sandbox.host.isolation.cgroups import Cage, Layout
from sandbox.host.jobs.jobs import Jobs
from sandbox.host.run.host_environment import Machine, Place
from sandbox.host.run.prewarmed import Standbys
from sandbox.host.sandbox import HostSandbox
from sandbox.host.settings import HostSettings
from sandbox.labels import digest
from sandbox.model import Network, SandboxId, Spec
from sandbox.port import Provider, Sandbox, Surroundings
from sandbox.workspaces.local_files import write_durably

_TRIES, _PAUSE = 20, 0.01

_log = structlog.get_logger(__name__)


class HostProvider(Provider):
    """Sandboxes on the gateway's own machine; `forbidden` says why none can be made here."""

    def __init__(self, machine: Machine, forbidden: str | None) -> None:
        self._machine = machine
        self._forbidden = forbidden
        self._directory = machine.surroundings.state / "sandboxes"
        self.standbys = Standbys()

    async def create(self, spec: Spec) -> Sandbox:
        """Make the sandbox's place; the label is written last, so that a crash leaves nothing half made."""
        self._check(spec)
        sandbox_id = SandboxId(f"host-{digest('sandbox', spec.label)}")
        place = self._place(sandbox_id)
        for directory in (place.jobs, place.home, place.scratch):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if spec.workspace is not None:
            spec.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._machine.surroundings.checkpoint("sandbox.create")
        if not place.label.exists():
            write_durably(place.label, spec.label.encode("utf-8", "surrogatepass"))
        return HostSandbox(sandbox_id, spec, self._machine, place, self.standbys)

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return a sandbox made by any process that had the same state directory."""
        self._check(spec)
        place = self._place(sandbox_id)
        if not place.label.exists():
            raise Gone
        return HostSandbox(sandbox_id, spec, self._machine, place, self.standbys)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """End the sandbox's jobs and remove its place; the workspace stays."""
        place = self._place(sandbox_id)
        place.label.unlink(missing_ok=True)
        await self.standbys.drop(sandbox_id)
        await Jobs(machine=self._machine, place=place).silence()
        await _until(Cage(layout=self._machine.layout, name=sandbox_id).remove)
        await asyncio.to_thread(_remove, place.directory)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes of this state directory."""
        found = []
        for label in sorted(self._directory.glob("*/label")):
            text = label.read_bytes().decode("utf-8", "surrogatepass")
            if text.startswith(label_prefix):
                found.append((SandboxId(label.parent.name), text))
        return found

    def _place(self, sandbox_id: SandboxId) -> Place:
        if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
            raise Gone(f"{sandbox_id!r} is no sandbox of this provider")
        return Place(directory=self._directory / sandbox_id)

    def _check(self, spec: Spec) -> None:
        if self._forbidden is not None:
            raise Refused(f"no sandbox can be made on this machine: {self._forbidden}; {bubblewrap.REMEDY}")
        if spec.network is Network.RESTRICTED:
            raise Unsupported(
                "the host provider cannot restrict the network to domains: allow-all or deny-all"
            )
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise Refused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not NAME.match(name) or LOADERS.match(name) or "\0" in value:
                raise Refused(f"the variable {name!r} is not allowed in a sandbox")


@asynccontextmanager
async def open_provider(settings: HostSettings, surroundings: Surroundings) -> AsyncIterator[Provider]:
    """Look at the machine once, sweep up after dead predecessors, and yield the provider."""
    for directory in (surroundings.state, surroundings.callbacks):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    binary = bubblewrap.find(settings.bubblewrap)
    trouble = await asyncio.to_thread(bubblewrap.probe, binary)
    plain = trouble is not None and surroundings.allow_unsandboxed
    trial = bubblewrap.trial(binary or Path("bwrap"))
    layout = _layout(settings, surroundings.state)
    machine = Machine(
        settings=settings,
        surroundings=surroundings,
        layout=layout,
        binary=None if plain else binary,
        runtimes=tuple(runtimes.find(settings.runtime_directories)),
        networking=await asyncio.to_thread(network.find, settings.network_helper, trial),
    )
    root_filesystem.write_etc(machine.etc)
    _warn(machine, trouble, plain=plain)
    provider = HostProvider(machine, None if plain else trouble)
    try:
        yield provider
    finally:
        await provider.standbys.close()
        await _until(partial(cgroups.leave, layout))


async def _until(gone: Callable[[], bool]) -> None:
    """Try to take control groups away for a moment: the killed need one to leave them."""
    for _ in range(_TRIES):
        if gone():
            return
        await asyncio.sleep(_PAUSE)


def tag_of(state: Path) -> str:
    """Return the name of our control groups: one for each state directory."""
    return f"dovecote-{digest('state', str(state.resolve()))[:12]}"


def _layout(settings: HostSettings, state: Path) -> Layout:
    if not settings.cgroups:
        return Layout()
    layout = cgroups.probe(tag_of(state))
    sandboxes = state / "sandboxes"
    cgroups.sweep(layout, frozenset(path.name for path in sandboxes.glob("*")))
    return layout


def _warn(machine: Machine, trouble: str | None, *, plain: bool) -> None:
    if plain:
        _log.warning(
            "COMMANDS RUN AS PLAIN PROCESSES OF THIS MACHINE: no sandbox around them", because=trouble
        )
    elif trouble is not None:
        _log.warning("no sandbox can be made here", because=trouble, remedy=bubblewrap.REMEDY)
    if not machine.networking.isolated:
        _log.warning(
            "sandboxes with network.mode allow-all SHARE THIS MACHINE'S NETWORK, loopback included",
            because=machine.networking.detail,
        )
    absent = [name for name in ("memory", "pids") if name not in machine.layout]
    if absent:
        _log.warning("no control group for sandboxes: per-process limits stand in", missing=absent)


def _remove(directory: Path) -> None:
    """Remove a directory whatever modes its former owner left behind."""

    def unlock(function: object, path: str, _error: object) -> None:
        parent = Path(path).parent
        parent.chmod(0o700)
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112,PTH114 - as rmtree gives it
            Path(path).chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
        elif callable(function):
            function(path)

    if directory.exists():
        shutil.rmtree(directory, onerror=unlock)
