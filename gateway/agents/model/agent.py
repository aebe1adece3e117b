"""The model agent: runs attempts with the clients of their models, and holds the connections."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from importlib import import_module
from types import TracebackType
from typing import Self

from gateway.agents.clients.port import ModelClient
from gateway.agents.model.models import ModelClients
from gateway.agents.model.run import ModelRun
from gateway.agents.model.vendors import LIBRARY_VENDORS, UnusableModel, Vendors, check_chain
from gateway.agents.port import Agent, AgentClosed, AgentError, AgentEvent, AgentSpec, Tools, TurnInput

MAX_CACHED_CHAINS = 256


class ModelAgent(Agent, AbstractAsyncContextManager["ModelAgent"]):
    """Runs turns with the models of `Vendors`; its only state is the connections to them."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._clients: ModelClients | None = None
        self._is_library_loaded = False
        self._chains: OrderedDict[tuple[object, ...], ModelClient] = OrderedDict()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Close the connections to the vendors; no turn may be running."""
        self._chains.clear()
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.aclose()

    async def preload(self, models: Iterable[str]) -> None:
        """Load pydantic-ai if a model needs it, in a thread: it takes a second, and leases are renewed."""
        if self._is_library_loaded or not any(one.partition(":")[0] in LIBRARY_VENDORS for one in models):
            return
        await asyncio.to_thread(_load_library)
        self._is_library_loaded = True

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run one attempt as the port specifies; the next event waits until this one is processed."""
        try:
            client = await self._client(turn_input.agent)
        except UnusableModel as error:
            raise AgentError(str(error)) from error
        clients = self._clients
        attempt = ModelRun(turn_input=turn_input, tools=tools, client=client)
        try:
            async with aclosing(attempt.run()) as events:
                async for event in events:
                    yield event
        except Exception as error:
            if self._clients is not clients:
                raise AgentClosed from error
            raise

    async def _client(self, agent: AgentSpec) -> ModelClient:
        """Return the models of a spec; they hold no turn's state, so that equal specs share them."""
        if self._clients is None:
            self._clients = ModelClients(self._vendors)
        key = (agent.models, agent.base_url, agent.limits.step_timeout)
        client = self._chains.pop(key, None)
        if client is None:
            if not check_chain(agent.models, self._vendors, agent.base_url):
                await self.preload(agent.models)
            client = self._clients.build_chain(agent)
        self._chains[key] = client
        if len(self._chains) > MAX_CACHED_CHAINS:
            self._chains.popitem(last=False)
        return client


def _load_library() -> None:
    """Import pydantic-ai and what it needs for its vendors."""
    import_module("gateway.agents.clients.pydantic_ai_client")
