"""What the operator allows sandboxes of accounts to be: `[sandbox.allow]` of the configuration.

Records above a ceiling are refused when they are saved. For a record that was saved before, memory and
lifetime are lowered to the ceiling, and a turn that needs anything else above it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from delivery.database.engine import Connection
from gateway.config.sandbox_settings import WRITABLE, SandboxCeilings
from gateway.store.accounts import accounts
from sandbox.config import ConfigProblem, SandboxConfig

FIRST_ACCOUNT = "default"
"""The account that the gateway creates at its first start. It belongs to the operator."""

FURTHER_ACCOUNTS = ("deny-all", "restricted")
"""The network modes of the other accounts, unless the operator names the modes of all."""


async def is_first_account(connection: Connection, account: str) -> bool:
    """Return whether an account is the operator's own."""
    found = await accounts.get_account(connection, account_id=account)
    return found is not None and found.name == FIRST_ACCOUNT


def problems_above(
    config: SandboxConfig, ceilings: SandboxCeilings, *, is_first: bool, below: str = ""
) -> Iterator[ConfigProblem]:
    """Yield a problem for each value that is above the operator's ceilings."""
    lifecycle, options = config.lifecycle, config.options
    if ceilings.memory_mb is not None and "memory_limit" in config.model_fields_set:
        yield from _above(config.memory_limit, ceilings.memory_mb, f"{below}/memoryLimit", "MB")
    if ceilings.lifetime is not None and "max_lifetime" in lifecycle.model_fields_set:
        pointer = f"{below}/lifecycle/maxLifetimeSeconds"
        yield from _above(lifecycle.max_lifetime, ceilings.lifetime, pointer, "seconds")
    if ceilings.memory_mb is not None and options.memory_gb is not None:
        yield from _above(options.memory_gb * 1024, ceilings.memory_mb, f"{below}/options/memoryGb", "MB")
    yield from unlowered_problems(config, ceilings, is_first=is_first, below=below)


def unlowered_problems(
    config: SandboxConfig, ceilings: SandboxCeilings, *, is_first: bool, below: str = ""
) -> Iterator[ConfigProblem]:
    """Yield a problem for each value above a ceiling that no smaller value can replace at its use."""
    options = config.options
    if config.external is None:
        yield from _network_problems(config.network.mode, ceilings, is_first=is_first, below=below)
    else:
        yield from _external_problems(config, ceilings, is_first=is_first, below=below)
    if ceilings.disk_gb is not None:
        for name, size in (("diskGb", options.disk_gb), ("persistentDiskGb", options.persistent_disk_gb)):
            yield from _above(size or 0, ceilings.disk_gb, f"{below}/options/{name}", "GB")
    if ceilings.providers is not None and config.provider not in ceilings.providers:
        yield _unlisted(f"{below}/provider", config.provider, "providers", ceilings.providers)
    if ceilings.images is not None:
        for name in ("image", "template", "snapshot"):
            wanted = getattr(options, name)
            if wanted is not None and wanted not in ceilings.images:
                yield _unlisted(f"{below}/options/{name}", wanted, "images", ceilings.images)
    yield from _mount_problems(config, ceilings, is_first=is_first, below=below)


def lowered(config: SandboxConfig, ceilings: SandboxCeilings) -> SandboxConfig:
    """Return a config whose memory and lifetime are at most the operator's ceilings."""
    changes: dict[str, object] = {}
    if ceilings.memory_mb is not None and config.memory_limit > ceilings.memory_mb:
        changes["memory_limit"] = ceilings.memory_mb
    lifetime = ceilings.lifetime
    if lifetime is not None and config.lifecycle.max_lifetime > lifetime:
        changes["lifecycle"] = config.lifecycle.model_copy(update={"max_lifetime": lifetime})
    return config.model_copy(update=changes) if changes else config


def _network_problems(
    mode: str, ceilings: SandboxCeilings, *, is_first: bool, below: str
) -> Iterator[ConfigProblem]:
    if ceilings.networks is None and (is_first or mode in FURTHER_ACCOUNTS):
        return
    allowed = FURTHER_ACCOUNTS if ceilings.networks is None else ceilings.networks
    if mode not in allowed:
        yield _unlisted(f"{below}/network/mode", mode, "networks", allowed)


def _mount_problems(
    config: SandboxConfig, ceilings: SandboxCeilings, *, is_first: bool, below: str
) -> Iterator[ConfigProblem]:
    """Yield a problem for each directory that is not listed exactly so, or not for writing."""
    listed = (*(ceilings.mounts if is_first else ()), *ceilings.shared_mounts)
    readable = tuple(one.removesuffix(WRITABLE) for one in listed)
    for place, one in enumerate(config.mounts):
        if one.source not in readable:
            yield _unlisted(f"{below}/mounts/{place}/source", one.source[:200], "mounts", readable)
        elif not one.read_only and f"{one.source}{WRITABLE}" not in listed:
            detail = (
                f"{one.source!r} may be read only: set readOnly: true; the operator can list it as "
                f"{one.source}{WRITABLE} in [sandbox.allow] mounts"
            )
            yield ConfigProblem(pointer=f"{below}/mounts/{place}/readOnly", detail=detail)


def _external_problems(
    config: SandboxConfig, ceilings: SandboxCeilings, *, is_first: bool, below: str
) -> Iterator[ConfigProblem]:
    """Yield a problem for an external sandbox that is not listed for the account.

    Its network is its owner's choice, so that the ceiling of networks does not apply.
    """
    listed = (*(ceilings.external if is_first else ()), *ceilings.shared_external)
    wanted = f"{config.provider}:{config.external}"
    if wanted not in listed:
        yield _unlisted(f"{below}/external", wanted[:200], "external", listed)


def _unlisted(pointer: str, value: str, key: str, allowed: tuple[str, ...]) -> ConfigProblem:
    detail = (
        f"{value!r} is not one that the operator allows: {', '.join(allowed) or 'none'}; "
        f"the operator can list it in [sandbox.allow] {key}"
    )
    return ConfigProblem(pointer=pointer, detail=detail)


def _above(value: float, most: float, pointer: str, unit: str) -> Iterator[ConfigProblem]:
    if value > most:
        detail = f"{value:g} exceeds the operator's limit of {most:g} {unit}"
        yield ConfigProblem(pointer=pointer, detail=detail)
