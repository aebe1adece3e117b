"""How the docker provider is opened in a test: on a real engine, started for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docker_engine
from sandbox.docker.settings import DockerSettings
from sandbox.registry import installed
from sandbox_rigs import Make, Rig


def engine_rig(name: str, directory: Path, **settings: Any) -> Rig:
    """Return the provider on the tests' engine; skips where there can be none."""
    engine = docker_engine.shared()
    chosen = DockerSettings(host=engine.host, image=docker_engine.IMAGE, pull=False, **settings)
    return Rig(name=name, plugin=installed()["docker"], settings=chosen, directory=directory)


WAYS: dict[str, Make] = {"engine": lambda directory: engine_rig("engine", directory)}
