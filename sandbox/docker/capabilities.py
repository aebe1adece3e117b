"""What the engine offers, told to `doctor` and to tool descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiodocker.exceptions import DockerError

from sandbox.docker.engine import connected
from sandbox.docker.errors import folded
from sandbox.docker.settings import DockerSettings
from sandbox.errors import SandboxError
from sandbox.port import Ability

PATIENCE = 10.0


def abilities(settings: DockerSettings) -> Sequence[Ability]:
    """Ask the engine once; whoever calls may be inside an event loop, so that it has one of its own."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _ask(settings)).result()


async def _ask(settings: DockerSettings) -> Sequence[Ability]:
    try:
        async with asyncio.timeout(PATIENCE), connected(settings) as engine:
            with folded():
                told: Mapping[str, Any] = await engine.docker.system.info()
            return [*_engine(settings, told), await _image(engine.docker, settings)]
    except (SandboxError, TimeoutError) as error:
        detail = f"{settings.host}: {error!s}"
        return [Ability(name="isolation", present=False, detail=detail)]


def _engine(settings: DockerSettings, told: Mapping[str, Any]) -> Iterator[Ability]:
    version = f"{settings.host}: {told.get('OperatingSystem', 'an engine')}, {told.get('ServerVersion', '?')}"
    runtimes = sorted(told.get("Runtimes") or {})
    chosen = settings.runtime or str(told.get("DefaultRuntime") or "the default runtime")
    yield Ability(name="isolation", present=True, detail=f"{version}; a container for each sandbox, {chosen}")
    if settings.runtime:
        yield Ability(
            name="runtime",
            present=settings.runtime in runtimes,
            detail=f"the engine has {', '.join(runtimes)}",
        )
    limits = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    for name, key in limits.items():
        present = told.get(key) is not False
        detail = "control groups" if present else "the engine cannot limit it"
        yield Ability(name=f"limit.{name}", present=present, detail=detail)
    yield Ability(
        name="network", present=True, detail=f"allow-all is the engine's network {settings.network!r}"
    )


async def _image(docker: Any, settings: DockerSettings) -> Ability:
    try:
        with folded():
            await docker.images.inspect(settings.image)
    except (SandboxError, DockerError) as error:
        detail = f"{settings.image} is not there yet" + (
            ", it is fetched when needed" if settings.pull else ""
        )
        return Ability(name="image", present=settings.pull, detail=f"{detail} ({error})")
    return Ability(name="image", present=True, detail=settings.image)
