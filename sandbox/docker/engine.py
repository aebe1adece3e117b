"""Connect to the engine, and start, suspend and inspect its containers."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from sandbox.docker.errors import CONFLICT, NOT_FOUND, SERVER_ERROR, translate_errors
from sandbox.docker.execution import Execution
from sandbox.docker.settings import DockerSettings
from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.model import SandboxId

_UNIX = "unix://"
_ATTEMPTS, _PAUSE = 20, 0.05
_ALREADY_DONE = {304, CONFLICT}


async def _nothing(_engine: Engine, _details: Mapping[str, Any]) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A connection to the engine; `session` and `base` are for streamed requests.

    `before_start` is awaited with the engine and its description of a container that is about to be started.
    """

    docker: Docker
    session: aiohttp.ClientSession
    base: str
    settings: DockerSettings
    before_start: Callable[[Engine, Mapping[str, Any]], Awaitable[None]] = field(default=_nothing)

    def container(self, sandbox_id: SandboxId) -> DockerContainer:
        """Return a container's client object by name, without a request."""
        return self.docker.containers.container(sandbox_id)

    async def inspect(self, sandbox_id: SandboxId) -> dict[str, Any]:
        """Return the engine's description of a container; raises SandboxGone."""
        with translate_errors():
            details: dict[str, Any] = await self.container(sandbox_id).show()
        return details

    async def start(
        self, sandbox_id: SandboxId, *, user: str, exec_spec: ExecSpec, resume: bool = True
    ) -> Execution:
        """Start a process; a container that sleeps is woken first, or raises Gone too.

        The engine hears of a pause by an event of its runtime: one that comes after we woke the
        container makes it say "paused" once more, until the event of the waking comes too.
        """
        container = self.container(sandbox_id)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._start(container, user, exec_spec)
            except DockerError as error:
                if error.status != CONFLICT and not await self._is_suspended(sandbox_id, error):
                    raise
                if not resume:
                    raise SandboxGone("the container is suspended") from error
            await asyncio.sleep(_PAUSE if attempt else 0)
            await self.ensure_running(sandbox_id)
        return await self._start(container, user, exec_spec)

    async def _is_suspended(self, sandbox_id: SandboxId, error: DockerError) -> bool:
        """Return whether the state explains an error: Podman answers 500 where Docker answers 409."""
        if error.status != SERVER_ERROR:
            return False
        state = (await self.inspect(sandbox_id))["State"]
        return bool(state.get("Paused")) or not state.get("Running")

    async def _start(self, container: DockerContainer, user: str, exec_spec: ExecSpec) -> Execution:
        execution = await container.exec(
            exec_spec.argv,
            stdin=exec_spec.stdin,
            environment=exec_spec.environment,
            workdir=exec_spec.directory,
            user=user,
        )
        stream = execution.start(detach=False)
        await stream.__aenter__()
        return Execution(execution, stream, exec_spec.output_limit)

    async def ensure_running(self, sandbox_id: SandboxId) -> None:
        """Bring a container to run, whatever it does now; raises Gone."""
        details = await self.inspect(sandbox_id)
        state = details["State"]
        container = self.container(sandbox_id)
        with translate_errors():
            _raise_gone(state)
            if state.get("Paused"):
                await _tolerate(container.unpause(), {*_ALREADY_DONE, SERVER_ERROR})
            elif not state.get("Running"):
                await self.before_start(self, details)
                await _tolerate(container.start())

    async def stop(self, sandbox_id: SandboxId) -> None:
        """Stop a container, whatever `suspend` of the settings says; one that does not run is no error."""
        with translate_errors():
            await _tolerate(self.container(sandbox_id).stop(t=0))

    async def suspend(self, sandbox_id: SandboxId) -> None:
        """Stop or pause a container, as configured; one that is at rest already is no error.

        On a busy machine the kernel may not freeze all processes in the runtime's time; it is tried again.
        """
        container, last = self.container(sandbox_id), _ATTEMPTS - 1
        with translate_errors():
            for attempt in range(_ATTEMPTS):
                change = container.pause() if self.settings.suspend == "pause" else container.stop(t=0)
                try:
                    return await _tolerate(change)
                except DockerError as error:
                    if await self._is_suspended(sandbox_id, error):
                        return None
                    if error.status != SERVER_ERROR or attempt == last:
                        raise
                await asyncio.sleep(_PAUSE)
        return None

    async def cgroup_driver(self, *, is_podman: bool) -> str:
        """Return how the engine creates control groups: cgroupfs, systemd or none; empty if it does not say.

        A proxy before the engine's socket may refuse the request, which only the processors' shares need. A
        rootless Podman may create no groups outside those of its user: empty.
        """
        info: Mapping[str, Any] = {}
        with suppress(ProviderRefused), translate_errors():
            info = await self.docker.system.info()
        if is_podman and any("rootless" in str(one) for one in info.get("SecurityOptions") or ()):
            return ""
        return str(info.get("CgroupDriver") or "")

    async def is_podman(self) -> bool:
        """Return whether the engine is Podman with Docker's API."""
        with translate_errors():
            version: Mapping[str, Any] = await self.docker.version()
        return any("Podman" in str(one.get("Name")) for one in version.get("Components") or ())

    async def signal(self, sandbox_id: SandboxId, name: str) -> None:
        """Send a signal to the container's first process; one that no longer runs is no error."""
        with suppress(SandboxGone, ProviderRefused), translate_errors():
            await self.container(sandbox_id).kill(signal=name)

    async def check_not_removed(self, sandbox_id: SandboxId) -> None:
        """Raise SandboxGone if a container is being removed, not merely stopped or running."""
        for _ in range(_ATTEMPTS):
            state = (await self.inspect(sandbox_id))["State"]
            _raise_gone(state)
            if state.get("Running"):
                return
            await asyncio.sleep(_PAUSE)

    async def pull(self, image: str) -> None:
        """Pull an image that the engine lacks; raises ProviderRefused."""
        if not self.settings.pull:
            raise ProviderRefused(f"the engine has no image {image!r}, and `pull` is off: pull or build it")
        try:
            async with asyncio.timeout(self.settings.pull_timeout):
                await self.docker.images.pull(image, timeout=None)
        except DockerError as error:
            raise ProviderRefused(f"the image {image!r} cannot be pulled: {error.message}") from error
        except TimeoutError:
            raise ProviderRefused(f"pulling the image {image!r} takes too long: pull it manually") from None

    async def list(self, label: str) -> Sequence[Mapping[str, Any]]:
        """Return the containers with this label, suspended ones included."""
        filters = {"label": [label]}
        with translate_errors():
            found = await self.docker.containers.list(all=True, filters=filters)
        return [one._container for one in found]  # noqa: SLF001 - the listing's own fields; asking again may race


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """A process to start in a container."""

    argv: Sequence[str]
    environment: Sequence[str]
    directory: str
    stdin: bool = False
    output_limit: int = 4096


def _raise_gone(state: Mapping[str, Any]) -> None:
    if state.get("Dead") or state.get("Status") == "removing":
        raise SandboxGone


async def _tolerate(change: Any, statuses: Collection[int] = _ALREADY_DONE) -> None:
    """Await a change of state; another process may have made it."""
    try:
        await change
    except DockerError as error:
        if error.status not in statuses:
            raise


@asynccontextmanager
async def open_engine(settings: DockerSettings) -> AsyncIterator[Engine]:
    """Yield the engine; the first call shows whether it answers."""
    connector, url, base = _connector(settings)
    limits = aiohttp.ClientTimeout(total=settings.api_timeout)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
        docker = Docker(url=url, connector=connector, session=session, timeout=limits)
        try:
            yield Engine(docker=docker, session=session, base=base, settings=settings)
        finally:
            await docker.close()


def _connector(settings: DockerSettings) -> tuple[aiohttp.BaseConnector, str, str]:
    """Return how the engine is reached; connections are unlimited, because each running command holds one."""
    if settings.host.startswith(_UNIX):
        path = settings.host.removeprefix(_UNIX)
        return aiohttp.UnixConnector(path, limit=0), "unix://localhost", "http://localhost"
    context = _tls_context(settings.certificates) if settings.certificates else None
    scheme = "https" if context or settings.host.startswith("https:") else "http"
    base = re.sub(r"^\w+://", f"{scheme}://", settings.host).rstrip("/")
    return aiohttp.TCPConnector(limit=0, ssl=context or True), base, base


def _tls_context(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return context


def is_not_found(error: DockerError) -> bool:
    """Return whether the engine reports a missing object."""
    return bool(error.status == NOT_FOUND)
