"""The docker provider: sandboxes are containers, named by their label's digest and found by it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiodocker.exceptions import DockerError

from sandbox.docker import container
from sandbox.docker.container import LABEL, SHAPE, Ground
from sandbox.docker.engine import Engine, connected, is_missing
from sandbox.docker.errors import CONFLICT, folded
from sandbox.docker.sandbox import Box, DockerSandbox
from sandbox.docker.settings import DockerSettings
from sandbox.errors import Gone, Refused, Unreachable
from sandbox.model import SandboxId, Spec
from sandbox.port import Provider, Sandbox, Surroundings

_TRIES, _PAUSE = 100, 0.05


class DockerProvider(Provider):
    """Containers of one engine."""

    def __init__(self, engine: Engine, ground: Ground, surroundings: Surroundings) -> None:
        self._engine = engine
        self._ground = ground
        self._surroundings = surroundings

    async def create(self, spec: Spec) -> Sandbox:
        """Make the container, labelled from its first moment; its name keeps a second one from being made."""
        container.check(spec, self._ground.settings)
        sandbox_id = container.id_of(spec.label)
        body = container.body(sandbox_id, spec, self._ground)
        await asyncio.to_thread(self._make_room, sandbox_id, spec)
        for _ in range(_TRIES):
            try:
                shown = await self._found_or_made(sandbox_id, body)
                if shown["Config"]["Labels"].get(SHAPE) == body["Labels"][SHAPE]:
                    break
                await self._remove(sandbox_id)
            except Gone:  # removed by somebody between two calls
                await asyncio.sleep(_PAUSE)
        else:
            raise Unreachable("the container is being removed for too long")
        self._surroundings.checkpoint("sandbox.create")
        await self._engine.wake(sandbox_id)
        return self._sandbox(sandbox_id, spec, shown)

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return a sandbox made by any process; one that was made of something else is gone."""
        container.check(spec, self._ground.settings)
        if not container.is_id(sandbox_id):
            raise Gone(f"{sandbox_id!r} is no sandbox of this provider")
        shown = await self._engine.show(sandbox_id)
        body = container.body(sandbox_id, spec, self._ground)
        if shown["Config"]["Labels"].get(SHAPE) != body["Labels"][SHAPE]:
            raise Gone("the sandbox was made with another configuration")
        return self._sandbox(sandbox_id, spec, shown)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Remove the container with all in it, and its HOME; the workspace stays."""
        if not container.is_id(sandbox_id):
            return
        await self._remove(sandbox_id)
        await asyncio.to_thread(_remove, self._ground.home(sandbox_id))

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes of this engine."""
        found = []
        for one in await self._engine.list(LABEL):
            name, label = one["Names"][0].lstrip("/"), one["Labels"][LABEL]
            if container.is_id(name) and label.startswith(label_prefix):
                found.append((SandboxId(name), label))
        return sorted(found)

    async def _found_or_made(self, sandbox_id: SandboxId, body: dict[str, Any]) -> dict[str, Any]:
        """Make the container unless one of its name is there, and return what the engine knows of it."""
        try:
            await self._made(sandbox_id, body)
        except DockerError as error:
            if is_missing(error):
                await self._engine.fetch(body["Image"])
                return await self._found_or_made(sandbox_id, body)
            if error.status != CONFLICT:
                with folded():
                    raise
        return await self._engine.show(sandbox_id)

    async def _made(self, sandbox_id: SandboxId, body: dict[str, Any]) -> None:
        try:
            await self._engine.docker.containers.create(config=body, name=sandbox_id)
        except DockerError:
            raise
        except (TimeoutError, OSError) as error:
            raise Unreachable(f"the container engine does not answer: {error!r}") from error

    async def _remove(self, sandbox_id: SandboxId) -> None:
        """Remove a container and wait until its name is free again; one that is not there is no error."""
        for _ in range(_TRIES):
            try:
                with folded():
                    await self._engine.container(sandbox_id).delete(force=True, v=True)
            except Gone:
                return
            except Refused:  # its removal is under way already
                await asyncio.sleep(_PAUSE)
        raise Unreachable("the engine does not remove the container")

    def _make_room(self, sandbox_id: SandboxId, spec: Spec) -> None:
        """Make the directories that are mounted, ours from the start: the engine would make them root's."""
        if spec.workspace is not None:
            spec.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        if spec.persistent:
            home = self._ground.home(sandbox_id)
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _give(home, self._ground.user)

    def _sandbox(self, sandbox_id: SandboxId, spec: Spec, shown: Mapping[str, Any]) -> Sandbox:
        entries = (entry.partition("=") for entry in shown["Config"].get("Env") or ())
        image = {name: value for name, _, value in entries}
        return DockerSandbox(
            Box(engine=self._engine, ground=self._ground, sandbox_id=sandbox_id, spec=spec, image=image)
        )


@asynccontextmanager
async def open_provider(settings: DockerSettings, surroundings: Surroundings) -> AsyncIterator[Provider]:
    """Yield the provider; the engine may come and go."""
    for directory in (surroundings.state, surroundings.callbacks):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ground = Ground(settings=settings, state=surroundings.state, callbacks=surroundings.callbacks)
    async with connected(settings) as engine:
        yield DockerProvider(engine, ground, surroundings)


def _give(directory: Path, user: str) -> None:
    """Let another user than ours have a directory, where we may."""
    owner, _, group = user.partition(":")
    if int(owner) != os.getuid() and os.getuid() == 0:
        os.chown(directory, int(owner), int(group or owner))


def _remove(directory: Path) -> None:
    """Remove a directory whatever modes its former owner left behind."""

    def unlock(_function: object, path: str, _error: object) -> None:
        parent = Path(path).parent
        parent.chmod(0o700)
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112,PTH114 - as rmtree gives it
            Path(path).chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    if directory.exists():
        shutil.rmtree(directory, onerror=unlock)
