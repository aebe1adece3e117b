"""Tools that are HTTP requests: what single requests and operations of OpenAPI documents share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from gateway.records.records import Records
from gateway.store.accounts.records import Record
from gateway.tools.external.requests import RequestSession
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.tool import Tool, ToolContext

Config = TypeVar("Config")


class RequestTools(ABC, Generic[Config]):
    """Offers tools of agent records beside other external tools; they send requests in one session."""

    def __init__(self, records: Records, others: OpenExternalTools) -> None:
        self.records = records
        self._others = others

    @abstractmethod
    def configs_of(self, agent: Record) -> Mapping[str, Config]:
        """Return the configs in an agent's record by name."""

    @abstractmethod
    def build(self, configs: Mapping[str, Config], requests: RequestSession) -> Mapping[str, Tool]:
        """Return the tools of some configs by the names that they are offered with."""

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        """Open the agent's tools, and the others; connections are closed with the block."""
        agent = context.agent
        configs = self.configs_of(agent) if agent is not None else {}
        if agent is None or not configs:
            return self._others(context)
        return self._open(context, agent, configs)

    @asynccontextmanager
    async def _open(
        self, context: ToolContext, agent: Record, configs: Mapping[str, Config]
    ) -> AsyncIterator[ExternalTools]:
        async with self._others(context) as others:
            requests = RequestSession(self.records.guard_of(agent))
            try:
                yield replace(others, tools={**others.tools, **self.build(configs, requests)})
            finally:
                await requests.aclose()
