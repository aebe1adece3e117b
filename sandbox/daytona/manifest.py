"""The manifest of the Daytona provider; it does not import the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Any

from sandbox.config import ConfigProblem, SandboxConfig, home_problems, unsupported_options
from sandbox.daytona.settings import DaytonaSettings
from sandbox.errors import install_command
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_UNSUPPORTED = {
    "image": "choose a snapshot instead: snapshot",
    "template": "choose a snapshot instead: snapshot",
}


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from unsupported_options(config, "daytona", _UNSUPPORTED)
    yield from home_problems(config, "daytona", "/home/daytona")
    if config.options.persistent_home is False and config.persistent:
        yield ConfigProblem(
            pointer="/options/persistentHome",
            detail="false is not possible on daytona: a stopped sandbox keeps it",
        )
    network = config.network
    if network.mode == "restricted" and not (network.allow_domains or network.allow_cidrs):
        yield ConfigProblem(pointer="/network", detail="'restricted' needs allowDomains or allowCidrs")


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    from sandbox.daytona.provider import open_provider

    return open_provider(settings, context)


def _capabilities(settings: Any) -> Sequence[Capability]:
    installed = find_spec("daytona") is not None
    with_key = settings.api_key is not None
    return (
        Capability(
            name="sdk",
            present=installed,
            detail="the daytona package is installed"
            if installed
            else f"install it: run {install_command('daytona')}",
        ),
        Capability(
            name="key",
            present=with_key,
            detail="a key is set" if with_key else "no key: set DAYTONA_API_KEY or [sandbox.daytona] api_key",
        ),
    )


plugin = ProviderPlugin(
    name="daytona",
    title="Daytona, cloud sandboxes",
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.RESTRICTED_NETWORK,
            Feature.EXPOSE,
            Feature.EXTERNAL,
            Feature.SYNCS_WORKSPACE,
        }
    ),
    resources=ResourceSupport(
        memory_limit="the snapshot defines the size: choose one with options.snapshot",
        cpu="the snapshot defines the number: choose one with options.snapshot",
        memory_gb="the snapshot defines the size: choose one with options.snapshot",
        disk_gb="the snapshot defines the size: choose one with options.snapshot",
        persistent_disk_gb="a stopped sandbox keeps its disk: leave it out",
    ),
    settings=DaytonaSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
)
