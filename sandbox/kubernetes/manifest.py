"""The manifest of the Kubernetes provider; it does not import the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_network
from typing import Any

from sandbox.config import (
    HOME_PATH,
    ConfigProblem,
    SandboxConfig,
    proxied_network_problems,
    unsupported_options,
)
from sandbox.errors import ProviderRefused, install_command
from sandbox.kubernetes.settings import IMAGE, KubernetesSettings
from sandbox.model import ResourceSupport
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin

_EXTRA = f"the kubernetes provider needs its extra: run {install_command('kubernetes')}"
_UNSUPPORTED = {
    "template": "choose an image instead: image",
    "snapshot": "choose an image instead: image",
    "auto_archive_seconds": "a suspended sandbox is a volume without a pod",
}


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    yield from unsupported_options(config, "kubernetes", _UNSUPPORTED)
    yield from _network_problems(config)
    options = config.options
    if options.image is not None and not IMAGE.fullmatch(options.image):
        yield ConfigProblem(
            pointer="/options/image",
            detail=f"{options.image!r} is not an image name, as in 'python:3.12-slim'",
        )
    if options.persistent_home is False and config.persistent:
        yield ConfigProblem(
            pointer="/options/persistentHome",
            detail="false is not possible on kubernetes: the volume of a reserved sandbox keeps it",
        )
    if isinstance(options.persistent_home, str) and not HOME_PATH.fullmatch(options.persistent_home):
        yield ConfigProblem(
            pointer="/options/persistentHome",
            detail=f"{options.persistent_home[:80]!r} is not a home directory, as in /home/node",
        )
    if options.persistent_disk_gb is not None and not config.persistent:
        yield ConfigProblem(
            pointer="/options/persistentDiskGb", detail="persistentDiskGb needs persistent: true"
        )


def _network_problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    for problem in proxied_network_problems(config):
        if problem.pointer.startswith("/network/allowDomains"):
            yield problem
    for text in config.network.allow_cidrs:
        try:
            ip_network(text, strict=False)
        except ValueError:
            yield ConfigProblem(
                pointer="/network/allowCidrs", detail=f"{text!r} is not a network, as in 192.0.2.0/24"
            )


def _open(settings: Any, context: ProviderContext) -> AbstractAsyncContextManager[Provider]:
    try:
        from sandbox.kubernetes.provider import open_provider
    except ImportError as error:
        raise ProviderRefused(f"{_EXTRA} ({error})") from error
    return open_provider(settings, context)


def _capabilities(settings: Any) -> Sequence[Capability]:
    try:
        from sandbox.kubernetes.capabilities import capabilities
    except ImportError as error:
        return [Capability(name="isolation", present=False, detail=f"{_EXTRA} ({error})")]
    return capabilities(settings)


plugin = ProviderPlugin(
    name="kubernetes",
    title="Pods of a Kubernetes cluster",
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.SYNCS_WORKSPACE,
            Feature.EXTERNAL,
            Feature.RESTRICTED_NETWORK,
        }
    ),
    resources=ResourceSupport(
        memory_limit=None,
        cpu=None,
        memory_gb="use memoryLimit, in MB",
        disk_gb=None,
        persistent_disk_gb=None,
    ),
    settings=KubernetesSettings,
    check=_check,
    open=_open,
    capabilities=_capabilities,
)
