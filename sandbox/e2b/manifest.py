"""The manifest of the E2B provider; it does not import the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Any

from sandbox.config import ConfigProblem, SandboxConfig, home_problems, unsupported_options
from sandbox.e2b.settings import E2bSettings
from sandbox.errors import install_command
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_UNSUPPORTED = {
    "image": "choose a template instead: template",
    "snapshot": "choose a template instead: template",
    "auto_archive_seconds": "a paused sandbox is kept by the service",
}


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from unsupported_options(config, "e2b", _UNSUPPORTED)
    yield from home_problems(config, "e2b", "/home/user")
    if config.options.persistent_home is False and config.persistent:
        yield ConfigProblem(
            pointer="/options/persistentHome",
            detail="false is not possible on e2b: a paused sandbox keeps it",
        )
    network = config.network
    if network.mode == "restricted" and not (network.allow_domains or network.allow_cidrs):
        yield ConfigProblem(pointer="/network", detail="'restricted' needs allowDomains or allowCidrs")


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    from sandbox.e2b.provider import open_provider

    return open_provider(settings, context)


def _capabilities(settings: Any) -> Sequence[Capability]:
    installed = find_spec("e2b") is not None
    return (
        Capability(
            name="sdk",
            present=installed,
            detail="the e2b package is installed"
            if installed
            else f"install it: run {install_command('e2b')}",
        ),
        Capability(
            name="key",
            present=settings.api_key is not None,
            detail="a key is set" if settings.api_key else "no key: set E2B_API_KEY or [sandbox.e2b] api_key",
        ),
    )


plugin = ProviderPlugin(
    name="e2b",
    title="E2B, micro virtual machines in the cloud",
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.RESTRICTED_NETWORK,
            Feature.EXPOSE,
            Feature.EXTERNAL,
        }
    ),
    resources=ResourceSupport(
        memory_limit="the template defines the size: choose one with options.template",
        cpu="the template defines the number: choose one with options.template",
        memory_gb="the template defines the size: choose one with options.template",
        disk_gb="the template defines the size: choose one with options.template",
        persistent_disk_gb="a paused sandbox keeps its disk: leave it out",
    ),
    settings=E2bSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
)
