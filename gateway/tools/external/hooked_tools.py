"""Open the hooks of a turn beside its external tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.records.records import Records
from gateway.records.tools.http_requests import HttpHookConfig
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.hooks.answer import Hook, HookFailed
from gateway.tools.hooks.http_hooks import HookSession, HttpHook
from gateway.tools.hooks.turn_hooks import TurnHooks
from gateway.tools.tool import ToolContext


class _PresentHooks:
    """The HTTP hooks of an agent's record as it is now, decrypted when it has changed."""

    def __init__(
        self, records: Records, context: ToolContext, agent: Record, configs: Mapping[str, HttpHookConfig]
    ) -> None:
        self._records = records
        self._context = context
        self._agent = agent
        self._configs = configs

    async def __call__(self) -> Mapping[str, HttpHookConfig]:
        async with self._context.jobs.read() as connection:
            present = await records.get_by_id(connection, self._agent.id)
        if present is None:
            raise HookFailed("its agent was deleted")
        if _checked_part(present) != _checked_part(self._agent):
            self._configs, self._agent = self._records.http_hooks(present), present
        return self._configs


def _checked_part(agent: Record) -> tuple[Any, Any]:
    return agent.config.get("hooks"), agent.encrypted_secrets


class HookedTools:
    """Opens external tools with hooks: those of installed packages, then those of the record."""

    def __init__(self, records: Records, installed: Sequence[Hook], others: OpenExternalTools) -> None:
        self._records = records
        self._installed = installed
        self._others = others

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        """Open the others with the hooks; connections are closed with the block."""
        agent = context.agent
        configs = self._records.http_hooks(agent) if agent is not None else {}
        if agent is None or not (configs or self._installed):
            return self._others(context)
        return self._open(context, agent, configs)

    @asynccontextmanager
    async def _open(
        self, context: ToolContext, agent: Record, configs: Mapping[str, HttpHookConfig]
    ) -> AsyncIterator[ExternalTools]:
        async with self._others(context) as others:
            session = HookSession(self._records.guard_of(agent))
            present = _PresentHooks(self._records, context, agent, configs)
            hooks = [HttpHook(name, config, session, present) for name, config in sorted(configs.items())]
            try:
                yield replace(others, hooks=TurnHooks(turn=context.turn, hooks=(*self._installed, *hooks)))
            finally:
                await session.aclose()
