"""The docker provider: one container per sandbox, on any engine with Docker's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sandbox.config import (
    ConfigProblem,
    SandboxConfig,
    home_problems,
    proxied_network_problems,
    unsupported_options,
)
from sandbox.docker.settings import IMAGE, DockerSettings
from sandbox.errors import ProviderRefused, install_command
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_EXTRA = f"the docker provider needs its extra: run {install_command('docker')}"
_UNSUPPORTED = ("template", "snapshot", "auto_archive_seconds")
_HOME = "/home/sandbox"


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from proxied_network_problems(config)
    yield from unsupported_options(config, "docker", dict.fromkeys(_UNSUPPORTED, "leave it out"))
    yield from home_problems(config, "docker", _HOME)
    image = config.options.image
    if image is not None and not IMAGE.fullmatch(image):
        yield ConfigProblem(
            pointer="/options/image", detail=f"{image!r} is not an image name, as in 'python:3.12-slim'"
        )
    if config.options.persistent_home and not config.persistent:
        yield ConfigProblem(pointer="/options/persistentHome", detail="persistentHome needs persistent: true")


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    try:
        from sandbox.docker.provider import open_provider
    except ImportError as error:
        raise ProviderRefused(f"{_EXTRA} ({error})") from error
    return open_provider(settings, context)


def _capabilities(settings: Any) -> Sequence[Capability]:
    try:
        from sandbox.docker.capabilities import capabilities
    except ImportError as error:
        return [Capability(name="isolation", present=False, detail=f"{_EXTRA} ({error})")]
    return capabilities(settings)


plugin = ProviderPlugin(
    name="docker",
    title="Containers of a Docker-compatible engine",
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.MOUNTS_WORKSPACE,
            Feature.RESTRICTED_NETWORK,
            Feature.SNAPSHOT,
            Feature.EXPOSE,
            Feature.CALLBACK,
            Feature.BIND_MOUNTS,
            Feature.EXTERNAL,
            Feature.LIVE_OUTPUT,
        }
    ),
    resources=ResourceSupport(
        memory_limit=None,
        cpu=None,
        memory_gb="use memoryLimit, in MB",
        disk_gb=None,
        persistent_disk_gb="leave it out",
    ),
    settings=DockerSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
)
