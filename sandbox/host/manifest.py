"""The manifest of the host provider."""

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
from sandbox.host.settings import HostSettings
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_UNSUPPORTED = ("image", "template", "snapshot", "auto_archive_seconds")
_HOME = "/home/sandbox"


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from proxied_network_problems(config)
    yield from unsupported_options(config, "host", dict.fromkeys(_UNSUPPORTED, "leave it out"))
    yield from home_problems(config, "host", _HOME)


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    from sandbox.host.provider import open_provider

    return open_provider(settings, context)


def _inspect(settings: Any) -> None:
    from sandbox.host.provider import find_network

    find_network(settings)


def _capabilities(settings: Any) -> Sequence[Capability]:
    from sandbox.host.capabilities import capabilities

    return capabilities(settings)


def _missing_runtimes(settings: Any) -> Sequence[str]:
    from sandbox.host.isolation import runtimes

    found = runtimes.find(settings.runtime_directories)
    return [*runtimes.missing(found), *runtimes.missing_git(), *runtimes.missing_screens()]


plugin = ProviderPlugin(
    name="host",
    title="The gateway's host, in bubblewrap namespaces",
    on_this_machine=True,
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.MOUNTS_WORKSPACE,
            Feature.RESTRICTED_NETWORK,
            Feature.SNAPSHOT,
            Feature.CALLBACK,
            Feature.BIND_MOUNTS,
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
    settings=HostSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
    missing_runtimes=_missing_runtimes,
    inspect=_inspect,
)
