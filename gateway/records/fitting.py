"""Whether what records refer to fits together: a workspace needs files that last."""

from __future__ import annotations

from collections.abc import AsyncIterator

from delivery.database import Connection
from gateway.records.agent import AgentConfig
from gateway.store import records
from sandbox import registry
from sandbox.config import Problem, SandboxConfig
from sandbox.port import Feature

_LASTING = {Feature.MOUNTS_WORKSPACE, Feature.CARRIES_WORKSPACE}


async def unfit(
    connection: Connection, account: str, config: AgentConfig, below: str
) -> AsyncIterator[Problem]:
    """Yield a problem for every workspace of an agent whose files would die with its sandbox.

    Where a provider neither mounts the workspace store nor carries files there in each turn, they live in the
    sandbox itself.
    """
    for place, use in enumerate(config.workspaces):
        wanted = use.sandbox or config.sandbox
        sandbox = await records.find(connection, account, "sandbox", wanted) if wanted else None
        if sandbox is None:
            continue
        parsed = SandboxConfig.model_validate(sandbox.config)
        if parsed.persistent or _LASTING & registry.plugin(parsed.provider).features:
            continue
        pointer = f"/workspaces/{place}/sandbox" if use.sandbox else "/sandbox"
        yield Problem(
            pointer=below + pointer,
            detail=f"{sandbox.name!r} is not reserved, and on {parsed.provider} a workspace's files live in "
            "its sandbox: set persistent to true there",
        )
