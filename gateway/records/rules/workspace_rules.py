"""Check that workspaces are used only with sandboxes whose files are durable and that honour `readOnly`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from delivery.database.engine import Connection
from gateway.records.agent import AgentConfig, WorkspaceUse, agent_config
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from sandbox import registry
from sandbox.config import ConfigProblem, SandboxConfig
from sandbox.port import Feature

_DURABLE = {Feature.MOUNTS_WORKSPACE, Feature.SYNCS_WORKSPACE}
READER_IN_EXTERNAL = (
    "an agent with readOnly cannot use an external sandbox: all agents there have the same files, and what "
    "it writes would be stored by the next agent that may write; give it another sandbox, or null"
)


async def workspace_problems(
    connection: Connection, account: str, config: AgentConfig, below: str
) -> AsyncIterator[ConfigProblem]:
    """Yield a problem for every workspace of an agent that cannot be used in its sandbox.

    If a provider neither mounts the workspace store nor syncs files with it, the files exist only in the
    sandbox, which must be reserved. In an external sandbox, agents that only read cannot be kept apart.
    """
    for place, use in enumerate(config.workspaces):
        wanted = _sandbox_of(use, config)
        sandbox = await records.get(connection, account, "sandbox", wanted) if wanted else None
        if sandbox is None:
            continue
        parsed = SandboxConfig.model_validate(sandbox.config)
        if use.read_only and parsed.external is not None:
            yield ConfigProblem(pointer=f"{below}/workspaces/{place}/readOnly", detail=READER_IN_EXTERNAL)
        if _has_durable_files(parsed):
            continue
        pointer = f"/workspaces/{place}/sandbox" if use.sandbox else "/sandbox"
        yield ConfigProblem(
            pointer=below + pointer,
            detail=f"{sandbox.name!r} is not reserved, and on {parsed.provider} a workspace's files live in "
            "its sandbox: set persistent to true there",
        )


async def agent_workspace_problems(
    connection: Connection, sandbox: Record, config: Mapping[str, Any], below: str
) -> AsyncIterator[ConfigProblem]:
    """Yield a problem for every agent with a workspace that the new config would no longer allow."""
    parsed = SandboxConfig.model_validate(config)
    is_durable = _has_durable_files(parsed)
    if is_durable and parsed.external is None:
        return
    for agent in await records.list_by_kind(connection, sandbox.account, "agent"):
        of_agent = agent_config(agent)
        uses = [
            one for one in of_agent.workspaces if _sandbox_of(one, of_agent) in (sandbox.id, sandbox.name)
        ]
        if uses and not is_durable:
            yield ConfigProblem(
                pointer=f"{below}/persistent",
                detail=f"agent {agent.name!r} has a workspace in it, and on {parsed.provider} a workspace's "
                "files live in its sandbox: set persistent to true, or give the agent another sandbox",
            )
        if parsed.external is not None and any(one.read_only for one in uses):
            yield ConfigProblem(
                pointer=f"{below}/external", detail=f"agent {agent.name!r}: {READER_IN_EXTERNAL}"
            )


def _has_durable_files(config: SandboxConfig) -> bool:
    """Return whether a workspace's files outlive the sandboxes of a record: mounted, synced or reserved."""
    return config.persistent or bool(_DURABLE & registry.plugin(config.provider).features)


def _sandbox_of(use: WorkspaceUse, config: AgentConfig) -> str | None:
    """Return the sandbox that a workspace is used with; None if the use sets it to null."""
    none = "sandbox" in use.model_fields_set and use.sandbox is None
    return None if none else use.sandbox or config.sandbox
