"""How the docker provider is opened in a test: on a real engine, started for the tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import docker_engine
from sandbox.docker.settings import DockerSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory


def engine_rig(name: str, directory: Path, *, kind: str = "docker", **settings: Any) -> ProviderRig:
    """Return the provider on the tests' engine of a kind; skips where there can be none."""
    engine = docker_engine.shared_engine(kind)
    chosen = DockerSettings(host=engine.host, image=docker_engine.IMAGE, pull=False, **settings)
    return ProviderRig(name=name, plugin=built_in()["docker"], settings=chosen, directory=directory)


VARIANTS: dict[str, RigFactory] = {"engine": lambda directory: engine_rig("engine", directory)}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    VARIANTS["podman"] = lambda directory: engine_rig("podman", directory, kind="podman")
