"""The docker provider: a container for each sandbox, on any engine that speaks Docker's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sandbox.config import Problem, SandboxConfig, meaningless
from sandbox.docker.settings import IMAGE, DockerSettings
from sandbox.errors import Refused
from sandbox.port import Ability, Feature, Provider, ProviderPlugin, Surroundings

_EXTRA = "the docker provider needs its extra: pip install 'dovecote[docker]'"
_UNKNOWN = ("template", "snapshot", "persistent_disk_gb", "auto_archive_seconds", "workspace_root")


def _check(config: SandboxConfig) -> Sequence[Problem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[Problem]:
    if config.network.mode == "restricted":
        yield Problem(
            pointer="/network/mode", detail="'restricted' is not possible on docker: allow-all or deny-all"
        )
    yield from meaningless(config, "docker", dict.fromkeys(_UNKNOWN, "leave it out"))
    image = config.options.image
    if image is not None and not IMAGE.fullmatch(image):
        yield Problem(
            pointer="/options/image", detail=f"{image!r} is no name of an image, as in 'python:3.12-slim'"
        )
    if config.options.memory_gb is not None:
        yield Problem(
            pointer="/options/memoryGb", detail="memoryGb means nothing on docker: memoryLimit, in MB, does"
        )
    if config.options.persistent_home and not config.persistent:
        yield Problem(pointer="/options/persistentHome", detail="persistentHome needs persistent: true")


def _open(settings: Any, surroundings: Surroundings) -> AbstractAsyncContextManager[Provider]:
    try:
        from sandbox.docker.provider import open_provider
    except ImportError as error:
        raise Refused(f"{_EXTRA} ({error})") from error
    return open_provider(settings, surroundings)


def _abilities(settings: Any) -> Sequence[Ability]:
    try:
        from sandbox.docker.capabilities import abilities
    except ImportError as error:
        return [Ability(name="isolation", present=False, detail=f"{_EXTRA} ({error})")]
    return abilities(settings)


plugin = ProviderPlugin(
    name="docker",
    title="Containers of a Docker-compatible engine",
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.MOUNTS_WORKSPACE,
            Feature.SNAPSHOT,
            Feature.EXPOSE,
            Feature.CALLBACK,
        }
    ),
    settings=DockerSettings,
    check=_check,
    open=_open,
    abilities=_abilities,
)
