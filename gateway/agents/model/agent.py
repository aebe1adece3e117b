"""The model agent: each attempt runs in its own task and hands over its events one at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gateway.agents.model.vendors import UnusableModel, Vendors, require_library
from gateway.agents.port import Agent, AgentClosed, AgentError, AgentEvent, AgentSpec, Tools, TurnInput

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

    from gateway.agents.model.run import ModelRun

CANCEL_RETRY_SECONDS = 1.0
MAX_CACHED_CHAINS = 256


class ModelAgent(Agent, AbstractAsyncContextManager["ModelAgent"]):
    """Runs turns with the models of `Vendors`; its only state is the connections to them."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._http: AsyncClient | None = None
        self._loaded_vendors: set[str] = set()
        self._chains: OrderedDict[tuple[object, ...], Model] = OrderedDict()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Close the connections to the vendors; no turn may be running."""
        self._chains.clear()
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def preload(self, models: Iterable[str]) -> None:
        """Load the models' SDKs in a thread: it takes seconds, during which leases must be renewed."""
        cold = {model.partition(":")[0] for model in models} - self._loaded_vendors
        if cold:
            require_library()
            await asyncio.to_thread(_load, cold)
            self._loaded_vendors |= cold

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run one attempt as the port specifies; the next event waits until this one is processed."""
        handover = _EventHandoff()
        performance = await self._prepare(turn_input, tools, handover)
        http = self._http
        task = asyncio.create_task(handover.run(performance), name=f"model agent, turn {turn_input.turn}")
        try:
            while (step := await handover.get()) is not None:
                yield step
                handover.task_done()
        except Exception as error:
            if self._http is not http:
                raise AgentClosed from error
            raise
        finally:
            await _cancel_and_wait(task)

    async def _prepare(self, turn_input: TurnInput, tools: Tools, handoff: _EventHandoff) -> ModelRun:
        try:
            await self.preload(turn_input.agent.models)
            from gateway.agents.model.run import ModelRun

            model = self._chain(turn_input.agent)
        except UnusableModel as error:
            raise AgentError(str(error)) from error
        return ModelRun(turn_input=turn_input, tools=tools, model=model, emit=handoff.put)

    def _chain(self, agent: AgentSpec) -> Model:
        """Return the models of a spec; they hold no turn's state, so that equal specs share them."""
        from gateway.agents.model.models import build_chain, open_http_client

        if self._http is None:
            self._http = open_http_client(self._vendors)
        key = (agent.models, agent.base_url, agent.limits.step_timeout)
        model = self._chains.pop(key, None) or build_chain(agent, self._vendors, self._http)
        self._chains[key] = model
        if len(self._chains) > MAX_CACHED_CHAINS:
            self._chains.popitem(last=False)
        return model


def _load(vendors: Iterable[str]) -> None:
    """Import the library and the vendors' SDKs; runs in a thread."""
    from gateway.agents.model.models import load_vendor

    for vendor in vendors:
        load_vendor(vendor)


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel an attempt and wait until its connections are closed.

    Cancelling is repeated: a library that catches CancelledError at the wrong moment swallows one.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_RETRY_SECONDS)


class _EventHandoff:
    """Passes events from the running task to the consumer, and waits until each is processed."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self._failure: BaseException | None = None

    async def run(self, model_run: ModelRun) -> None:
        """Run an attempt and report its end to the consumer, however it ends."""
        try:
            await model_run.run()
        except BaseException as error:
            self._failure = error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._events.put_nowait(None)

    async def put(self, step: AgentEvent) -> None:
        """Hand one step over; returns when the consumer comes back for the next."""
        self._events.put_nowait(step)
        await self._events.join()

    async def get(self) -> AgentEvent | None:
        """Return the next event, or None after the last; raises the attempt's error."""
        step = await self._events.get()
        if step is None and self._failure is not None:
            if isinstance(self._failure, Exception):
                raise self._failure
            raise AgentError("The model run was cancelled from inside.", retryable=True)
        return step

    def task_done(self) -> None:
        """Report that the last event is processed."""
        self._events.task_done()
