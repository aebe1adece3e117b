"""Notice before a tool call that the configuration was changed since the attempt at the turn began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from gateway.agents.port import ConfigurationChanged
from gateway.store.accounts import records, revisions
from gateway.store.accounts.records import Record
from gateway.tools.tool import ToolContext
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

CHECKED_KEYS = ("tools", "mcp", "hooks", "sends", "sandbox", "workspaces")
"""The keys of an agent's config that decide what its calls may do, and with which secrets."""

MAX_ATTEMPTS = 20
"""A turn that was begun more often keeps the configuration of its last attempt, so that it ends."""


class TurnConfiguration:
    """What an attempt began with: its agent's tools and secrets, and its environments."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._revision: int | None = None
        self._checked = ""

    async def ensure_current(self, call: str) -> None:
        """Raise ConfigurationChanged if this call would run with another configuration than the present one.

        A call is checked once. Raises DatabaseUnavailable.
        """
        agent, turn = self._context.agent, self._context.turn
        is_resolved = agent is not None and bool(self._context.environments)
        if agent is None or not is_resolved or call == self._checked or turn.attempt > MAX_ATTEMPTS:
            return
        async with self._context.jobs.read() as connection:
            revision = await revisions.get(connection, turn.account)
            present = agent if revision == self._revision else await records.get_by_id(connection, agent.id)
        if revision != self._revision and not await self._is_current(agent, present):
            log.info("turn.configuration_changed", turn=turn.id, agent=agent.id)
            raise ConfigurationChanged
        self._revision, self._checked = revision, call

    async def _is_current(self, agent: Record, present: Record | None) -> bool:
        if present is None or _checked_part(present) != _checked_part(agent):
            return False
        turn = self._context.turn
        try:
            resolved = await self._context.environment_resolver.resolve_all(
                present, turn.conversation, person=turn.asker
            )
        except SandboxError:
            return False  # the next attempt fails for this reason
        return dict(resolved) == dict(self._context.environments)


def _checked_part(agent: Record) -> Mapping[str, Any]:
    found = {name: agent.config.get(name) for name in CHECKED_KEYS}
    return {**found, "secrets": agent.encrypted_secrets}
