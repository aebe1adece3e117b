"""Report what the engine offers, for `doctor` and tool descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiodocker.exceptions import DockerError

from sandbox.docker.engine import open_engine
from sandbox.docker.errors import translate_errors
from sandbox.docker.settings import DockerSettings
from sandbox.errors import SandboxError
from sandbox.port import Capability

TIMEOUT_SECONDS = 10.0


def capabilities(settings: DockerSettings) -> Sequence[Capability]:
    """Query the engine once, in an event loop of its own, so that callers inside a loop can use it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _query(settings)).result()


async def _query(settings: DockerSettings) -> Sequence[Capability]:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), open_engine(settings) as engine:
            with translate_errors():
                info: Mapping[str, Any] = await engine.docker.system.info()
                version: Mapping[str, Any] = await engine.docker.version()
            name = engine_name(version)
            return [
                *_engine(settings, info, name),
                *user_problems(settings, info),
                await _image(engine.docker, settings),
            ]
    except (SandboxError, TimeoutError) as error:
        detail = f"{settings.host}: {error!s}"
        return [Capability(name="isolation", present=False, detail=detail)]


def engine_name(version: Mapping[str, Any]) -> str:
    """Return the engine's name, such as `Podman Engine`; Docker names itself only by its components."""
    components = version.get("Components") or ()
    return str(next((one["Name"] for one in components if one.get("Name")), "Engine"))


def user_problems(settings: DockerSettings, info: Mapping[str, Any]) -> Iterator[Capability]:
    """Yield what a rootless engine needs: user 0 inside is the engine's own user outside."""
    if any("rootless" in str(one) for one in info.get("SecurityOptions") or ()):
        fits = (settings.user or "").split(":")[0] == "0"
        yield Capability(
            name="user",
            present=fits,
            detail="the engine is rootless, and its own user owns the files"
            if fits
            else 'the engine is rootless: set user = "0:0" in [sandbox.docker], so that the gateway and the'
            " sandboxes can write the same files",
        )


def _engine(settings: DockerSettings, info: Mapping[str, Any], engine: str) -> Iterator[Capability]:
    system = info.get("OperatingSystem", "an unknown system")
    version = f"{settings.host}: {engine} {info.get('ServerVersion', '?')} on {system}"
    runtimes = sorted(info.get("Runtimes") or {})
    chosen = settings.runtime or str(info.get("DefaultRuntime") or "the default runtime")
    yield Capability(
        name="isolation", present=True, detail=f"{version}; a container for each sandbox, {chosen}"
    )
    if settings.runtime:
        yield Capability(
            name="runtime",
            present=settings.runtime in runtimes,
            detail=f"the engine has {', '.join(runtimes)}",
        )
    limits = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    for name, key in limits.items():
        present = info.get(key) is not False
        detail = "control groups" if present else "the engine cannot limit it"
        yield Capability(name=f"limit.{name}", present=present, detail=detail)
    filtered = "public addresses only" if settings.network_filter else "without a filter"
    yield Capability(
        name="network",
        present=True,
        detail=f"allow-all is the engine's network {settings.network!r}, {filtered}",
    )


async def _image(docker: Any, settings: DockerSettings) -> Capability:
    try:
        with translate_errors():
            await docker.images.inspect(settings.image)
    except (SandboxError, DockerError) as error:
        detail = f"{settings.image} is not available yet" + (
            ", it is pulled when needed" if settings.pull else ""
        )
        return Capability(name="image", present=settings.pull, detail=f"{detail} ({error})")
    return Capability(name="image", present=True, detail=settings.image)
