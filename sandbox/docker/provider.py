"""The docker provider: sandboxes are containers, named by their label's digest and found by the name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from aiodocker.exceptions import DockerError

from sandbox.docker import container
from sandbox.docker.container import LABEL, Bodies, ContainerDefaults, EngineFacts
from sandbox.docker.engine import Engine, is_not_found, open_engine
from sandbox.docker.errors import CONFLICT, translate_errors
from sandbox.docker.external import attach_container
from sandbox.docker.network_keeper import NetworkKeepers
from sandbox.docker.sandbox import ContainerHandle, DockerSandbox
from sandbox.docker.seccomp_profile import profile
from sandbox.docker.settings import DockerSettings
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxGone, SandboxOutdated
from sandbox.exec.scripts import program
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.port import Provider, ProviderContext, Sandbox
from sandbox.workspaces.local_files import write_durably
from sandbox.workspaces.removal import remove_tree

log = structlog.get_logger(__name__)

_TRIES, _PAUSE = 100, 0.05
_READABLE = 0o644


class DockerProvider(Provider):
    """The sandboxes of one engine."""

    def __init__(self, engine: Engine, defaults: ContainerDefaults, context: ProviderContext) -> None:
        self._keepers = NetworkKeepers()
        self._engine = replace(engine, before_start=self._keepers.prepare)
        self._defaults = defaults
        self._context = context
        self._engine_facts: EngineFacts | None = None

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create the container with its label; its name prevents a second one. An existing one is reused."""
        container.validate_spec(spec, self._defaults.settings)
        sandbox_id = container.container_id(spec.label)
        bodies = await self._bodies(sandbox_id, spec)
        await asyncio.to_thread(self._create_directories, sandbox_id, spec)
        self._context.open_sockets(sandbox_id, spec)
        for _ in range(_TRIES):
            try:
                details = await self._get_or_create_all(sandbox_id, bodies)
                if details is not None:
                    break
                await self._remove_all(sandbox_id)
            except SandboxGone:  # another process removed it between two calls
                await asyncio.sleep(_PAUSE)
        else:
            raise ProviderUnreachable("the removal of the container takes too long")
        self._context.checkpoint("sandbox.create")
        await self._rejoin_network(sandbox_id, spec)
        await self._engine.ensure_running(sandbox_id)
        return self._sandbox(sandbox_id, spec, details)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox created by any process; raises SandboxOutdated if its settings have changed."""
        if not spec.as_created:
            container.validate_spec(spec, self._defaults.settings)
        if not container.is_container_id(sandbox_id):
            raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")
        details = await self._engine.inspect(sandbox_id)
        if spec.as_created:
            return self._as_created(sandbox_id, spec, details)
        if not (await self._bodies(sandbox_id, spec)).fits(details):
            raise SandboxOutdated("the sandbox was made with another configuration")
        await self._check_network(sandbox_id, spec)
        self._context.open_sockets(sandbox_id, spec)
        return self._sandbox(sandbox_id, spec, details)

    def _as_created(self, sandbox_id: SandboxId, spec: SandboxSpec, details: Mapping[str, Any]) -> Sandbox:
        """Return a sandbox in the network that it was made for; its proxy has the lists of the record now.

        If the record allows everything now, so does the proxy.
        """
        made = replace(spec, network=container.network_of(details))
        is_proxied = made.network is Network.RESTRICTED
        is_opened = is_proxied and spec.network is Network.ALLOW_ALL
        self._context.open_sockets(sandbox_id, spec if is_opened else made, proxied=is_proxied)
        return self._sandbox(sandbox_id, made, details)

    async def _check_network(self, sandbox_id: SandboxId, spec: SandboxSpec) -> None:
        """Raise SandboxOutdated if a sandbox has lost its network, which only a restart gives back."""
        if container.is_filtered(spec, self._defaults.settings):
            await self._keepers.check(self._engine, sandbox_id)

    async def _rejoin_network(self, sandbox_id: SandboxId, spec: SandboxSpec) -> None:
        """Stop a container that has lost its network: the start that follows joins the present one."""
        try:
            await self._check_network(sandbox_id, spec)
        except SandboxOutdated as error:
            log.warning("sandbox.network_lost", sandbox=str(sandbox_id), error=str(error))
            await self._engine.stop(sandbox_id)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Remove the container with its files and its HOME; the workspace stays. Idempotent."""
        if not container.is_container_id(sandbox_id):
            return
        await self._remove_all(sandbox_id)
        self._context.close_sockets(sandbox_id)
        await asyncio.to_thread(remove_tree, self._defaults.home(sandbox_id))

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes of this engine."""
        found = set()
        for one in await self._engine.list(LABEL):
            name, label = container.sandbox_of(one["Names"][0].lstrip("/")), one["Labels"][LABEL]
            if container.is_container_id(name) and label.startswith(label_prefix):
                found.add((name, label))
        return sorted(found)

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return a container that Dovecote did not create."""
        return await attach_container(self._engine, spec)

    async def _bodies(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Bodies:
        """Return the descriptions of a sandbox."""
        if self._engine_facts is None:
            self._engine_facts = await self._inspect_engine()
        return container.bodies(sandbox_id, spec, self._defaults, self._engine_facts)

    async def _inspect_engine(self) -> EngineFacts:
        """Return what depends on the engine: Docker takes the seccomp profile itself, and Podman its path."""
        chosen = profile() if self._defaults.settings.seccomp == "strict" else ""
        is_podman = await self._engine.is_podman()
        if is_podman and chosen:
            path = self._defaults.state / "seccomp.json"
            await asyncio.to_thread(write_durably, path, chosen.encode())
            chosen = str(path.absolute())
        driver = await self._engine.cgroup_driver(is_podman=is_podman)
        return EngineFacts(seccomp=chosen, cgroup_driver=driver)

    async def _get_or_create_all(self, sandbox_id: SandboxId, bodies: Bodies) -> dict[str, Any] | None:
        """Return the engine's description of the sandbox's container; None if what exists is another's.

        The keeper of the network comes first. A container that joined an earlier keeper is not used.
        """
        joined = bodies.sandbox["HostConfig"]["NetworkMode"]
        modes = {joined}
        if bodies.keeper is not None:
            keeper = await self._get_or_create(container.keeper_id(sandbox_id), bodies.keeper)
            if not bodies.fits(keeper):
                return None
            modes.add(f"container:{keeper['Id']}")
        details = await self._get_or_create(sandbox_id, bodies.sandbox)
        is_joined = bodies.keeper is None or details["HostConfig"]["NetworkMode"] in modes
        return details if bodies.fits(details) and is_joined else None

    async def _remove_all(self, sandbox_id: SandboxId) -> None:
        """Remove the container and, after it, the keeper of its network."""
        await self._remove(sandbox_id)
        await self._remove(container.keeper_id(sandbox_id))

    async def _get_or_create(self, sandbox_id: SandboxId, body: dict[str, Any]) -> dict[str, Any]:
        """Create the container unless one of its name exists, and return the engine's description of it."""
        try:
            await self._create(sandbox_id, body)
        except DockerError as error:
            if is_not_found(error):
                await self._engine.pull(body["Image"])
                return await self._get_or_create(sandbox_id, body)
            if error.status != CONFLICT and not await self._exists(sandbox_id):
                with translate_errors():
                    raise
        return await self._engine.inspect(sandbox_id)

    async def _exists(self, sandbox_id: SandboxId) -> bool:
        """Return whether the name is taken: Podman reports that with 500, Docker with 409."""
        try:
            await self._engine.inspect(sandbox_id)
        except SandboxGone:
            return False
        return True

    async def _create(self, sandbox_id: SandboxId, body: dict[str, Any]) -> None:
        try:
            await self._engine.docker.containers.create(config=body, name=sandbox_id)
        except DockerError:
            raise
        except (TimeoutError, OSError) as error:
            raise ProviderUnreachable(f"the container engine does not answer: {error!r}") from error

    async def _remove(self, sandbox_id: SandboxId) -> None:
        """Remove a container and wait until its name is free again. Idempotent."""
        for _ in range(_TRIES):
            try:
                with translate_errors():
                    await self._engine.container(sandbox_id).delete(force=True, v=True)
            except SandboxGone:
                return
            except ProviderRefused:  # its removal is under way already
                await asyncio.sleep(_PAUSE)
        raise ProviderUnreachable("the engine does not remove the container")

    def _create_directories(self, sandbox_id: SandboxId, spec: SandboxSpec) -> None:
        """Create the mounted directories; otherwise the engine would create them as root."""
        if spec.workspace is not None:
            spec.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        if spec.persistent:
            home = self._defaults.home(sandbox_id)
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _chown(home, self._defaults.user)

    def _sandbox(self, sandbox_id: SandboxId, spec: SandboxSpec, details: Mapping[str, Any]) -> Sandbox:
        entries = (entry.partition("=") for entry in details["Config"].get("Env") or ())
        image = {name: value for name, _, value in entries}
        return DockerSandbox(
            ContainerHandle(
                engine=self._engine,
                defaults=self._defaults,
                sandbox_id=sandbox_id,
                spec=spec,
                image=image,
                check_network=partial(self._check_network, sandbox_id, spec),
            )
        )


@asynccontextmanager
async def open_provider(settings: DockerSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Yield the provider; the engine may be unavailable for a time."""
    context.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    defaults = ContainerDefaults(settings=settings, state=context.state, callbacks=context.callbacks)
    write_durably(defaults.forwarder, program(defaults.forwarder.name).encode())
    defaults.forwarder.chmod(_READABLE)
    async with open_engine(settings) as engine:
        yield DockerProvider(engine, defaults, context)


def _chown(directory: Path, user: str) -> None:
    """Give a directory to another user, if the gateway runs as root."""
    owner, _, group = user.partition(":")
    if int(owner) != os.getuid() and os.getuid() == 0:
        os.chown(directory, int(owner), int(group or owner))
