"""How the docker provider is opened in a test: on a real engine, started for the tests."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker_engine
from sandbox.docker.settings import DockerSettings
from sandbox.registry import built_in
from sandbox.testing.rig import OutsideSandbox, ProviderRig
from sandbox_rigs import RigFactory


def engine_rig(name: str, directory: Path, *, kind: str = "docker", **settings: Any) -> ProviderRig:
    """Return the provider on the tests' engine of a kind; skips where there can be none.

    `DOVECOTE_TEST_ENGINE_USER` is the user of commands, for a rootless engine.
    """
    engine = docker_engine.shared_engine(kind)
    if user := os.environ.get("DOVECOTE_TEST_ENGINE_USER"):
        settings = {"user": user, **settings}
    chosen = DockerSettings(host=engine.host, image=docker_engine.IMAGE, pull=False, **settings)
    return ProviderRig(
        name=name,
        plugin=built_in()["docker"],
        settings=chosen,
        directory=directory,
        runs_on=f"a real engine: {docker_engine.version(kind)}",
        outside=lambda: outside_container(engine),
    )


@dataclass(kw_only=True)
class OutsideContainer(OutsideSandbox):
    """A container of the engine's client, which no provider created."""

    engine: docker_engine.EngineProcess
    name: str

    async def state(self) -> object:
        """Return what the engine says about its life."""
        details = json.loads(await self._call("GET", "/json"))
        kept = {name: details["State"][name] for name in ("Status", "Pid", "StartedAt", "Paused")}
        return {"id": details["Id"], "config": details["Config"], "state": kept, "name": details["Name"]}

    async def remove(self) -> None:
        """Delete it."""
        await self._call("DELETE", "?force=1")

    async def _call(self, method: str, rest: str) -> str:
        return await asyncio.to_thread(self.engine.call, method, f"/containers/{self.name}{rest}")


@asynccontextmanager
async def outside_container(
    engine: docker_engine.EngineProcess, name: str = "", **config: object
) -> AsyncIterator[OutsideContainer]:
    """Run a container that is none of a provider's, and delete it afterwards."""
    name = name or f"somebody-elses-{secrets.token_hex(4)}"
    body = {
        "Image": docker_engine.IMAGE,
        "Cmd": ["bash", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"],
        "User": "1000:1000",
        "Env": ["OWNERS_SECRET=kept"],
        "Labels": {"owner": "somebody-else"},
        "HostConfig": {"NetworkMode": "none"},
        **config,
    }
    path = "/containers/"
    await asyncio.to_thread(engine.call, "POST", f"{path}create?name={name}", json_body=body)
    await asyncio.to_thread(engine.call, "POST", f"{path}{name}/start")
    outside = OutsideContainer(engine=engine, name=name)
    try:
        yield outside
    finally:
        await outside.remove()


VARIANTS: dict[str, RigFactory] = {"engine": lambda directory: engine_rig("engine", directory)}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    VARIANTS["podman"] = lambda directory: engine_rig("podman", directory, kind="podman")
