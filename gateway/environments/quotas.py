"""Workspace quotas, for files that do not come through a sandbox.

A quota is part of a sandbox's record (`diskGb`) or of a provider on this machine (the operator's
`workspace_bytes`). The smallest quota of all sandboxes that agents use a workspace with applies; for a
workspace that no agent uses, the operator's quota of the default provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from delivery.database.engine import Connection
from gateway.config.sandbox_settings import SandboxSettings
from gateway.records.agent import agent_config
from gateway.records.records import Records
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from sandbox import registry
from sandbox.config import SandboxConfig
from sandbox.workspaces.port import WorkspaceStore

_GIGABYTE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceQuotas:
    """The operator's quotas by provider; `default_provider` applies to a workspace that no agent uses."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    default_provider: str = "host"

    async def limit(self, connection: Connection, config_records: Records, workspace: Record) -> int | None:
        """Return the bytes that a workspace may contain; None: no limit."""
        configs = [config async for config in _list_configs(connection, config_records, workspace)]
        found = [self._limit(config) for config in configs or [SandboxConfig(provider=self.default_provider)]]
        return min((one for one in found if one is not None), default=None)

    def _limit(self, config: SandboxConfig) -> int | None:
        if not registry.mounts_workspace(config.provider, external=config.external):
            return None
        if config.options.disk_gb is not None:
            return int(config.options.disk_gb * _GIGABYTE)
        return self.defaults.get(config.provider)


def load_quotas(settings: SandboxSettings) -> WorkspaceQuotas:
    """Return the quotas that the settings name."""
    tables = {name: settings.for_provider(name).get("workspace_bytes") for name in registry.installed()}
    defaults = {name: int(limit) for name, limit in tables.items() if limit is not None}
    return WorkspaceQuotas(defaults=defaults, default_provider=settings.provider)


async def _list_configs(
    connection: Connection, config_records: Records, workspace: Record
) -> AsyncIterator[SandboxConfig]:
    """Yield the config of each sandbox that an agent uses with the workspace."""
    for agent in await records.list_by_kind(connection, workspace.account, "agent"):
        config = agent_config(agent)
        for use in config.workspaces:
            without = "sandbox" in use.model_fields_set and use.sandbox is None
            if use.workspace in (workspace.id, workspace.name) and not without:
                wanted = use.sandbox or config.sandbox
                record = (
                    await records.get(connection, workspace.account, "sandbox", wanted) if wanted else None
                )
                yield config_records.sandbox_config(record) if record else SandboxConfig()


async def quota_problem(
    store: WorkspaceStore, namespace: str, limit: int, path: str, size: int
) -> str | None:
    """Return why a file of this size does not fit into a workspace; None if it does. Raises SandboxError."""
    sizes = {name: seen.size for name, seen in (await store.replica(namespace).list()).items()}
    used = sum(sizes.values())
    if used - sizes.get(path, 0) + size <= limit:
        return None
    return (
        f"the workspace contains {used} bytes and may hold {limit}: remove files before uploading more, or "
        "raise its quota (diskGb of the sandbox's record, workspace_bytes of the provider)"
    )
