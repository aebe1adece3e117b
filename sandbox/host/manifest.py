"""The manifest of the host provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sandbox.config import Problem, SandboxConfig, meaningless
from sandbox.host.settings import HostSettings
from sandbox.port import Ability, Feature, Provider, ProviderPlugin, Surroundings

_UNKNOWN = ("image", "template", "snapshot", "persistent_disk_gb", "auto_archive_seconds")


def _check(config: SandboxConfig) -> Sequence[Problem]:
    return list(_problems(config))


def _problems(config: SandboxConfig) -> Iterator[Problem]:
    if config.network.mode == "restricted":
        yield Problem(
            pointer="/network/mode", detail="'restricted' is not possible on host: allow-all or deny-all"
        )
    yield from meaningless(config, "host", dict.fromkeys(_UNKNOWN, "leave it out"))


def _open(settings: Any, surroundings: Surroundings) -> AbstractAsyncContextManager[Provider]:
    from sandbox.host.provider import open_provider

    return open_provider(settings, surroundings)


def _abilities(settings: Any) -> Sequence[Ability]:
    from sandbox.host.capabilities import abilities

    return abilities(settings)


def _lacking(settings: Any) -> Sequence[str]:
    from sandbox.host.isolation import runtimes

    return runtimes.missing(runtimes.find(settings.runtime_directories))


plugin = ProviderPlugin(
    name="host",
    title="This machine, in bubblewrap namespaces",
    on_this_machine=True,
    features=frozenset(
        {
            Feature.JOBS,
            Feature.PERSISTENT,
            Feature.SUSPEND,
            Feature.MOUNTS_WORKSPACE,
            Feature.SNAPSHOT,
            Feature.CALLBACK,
        }
    ),
    settings=HostSettings,
    check=_check,
    open=_open,
    abilities=_abilities,
    lacking=_lacking,
)
