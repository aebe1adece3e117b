"""The model agent: each attempt performs in a task of its own and hands its steps over one at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gateway.agents.model.vendors import UnusableModel, Vendors, require_library
from gateway.agents.port import Agent, AgentError, Persona, Step, Tools, Work

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

    from gateway.agents.model.run import Performance

CANCEL_AGAIN_AFTER = 1.0
CHAINS_KEPT = 256


class ModelAgent(Agent, AbstractAsyncContextManager["ModelAgent"]):
    """Performs turns with the models of `Vendors`; holds nothing but the connections to them."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._http: AsyncClient | None = None
        self._warm: set[str] = set()
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

    async def warm(self, models: Iterable[str]) -> None:
        """Load what these models need, in a thread: it takes seconds, in which leases must be renewed."""
        cold = {model.partition(":")[0] for model in models} - self._warm
        if cold:
            require_library()
            await asyncio.to_thread(_load, cold)
            self._warm |= cold

    async def perform(self, work: Work, tools: Tools) -> AsyncGenerator[Step, None]:
        """Perform one attempt, as the port says; the next step waits until this one was dealt with."""
        handover = _Handover()
        performance = await self._prepare(work, tools, handover)
        task = asyncio.create_task(handover.watch(performance), name=f"model agent, turn {work.turn}")
        try:
            while (step := await handover.take()) is not None:
                yield step
                handover.taken()
        finally:
            await _end(task)

    async def _prepare(self, work: Work, tools: Tools, handover: _Handover) -> Performance:
        try:
            await self.warm(work.persona.models)
            from gateway.agents.model.run import Performance

            model = self._chain(work.persona)
        except UnusableModel as error:
            raise AgentError(str(error)) from error
        return Performance(work=work, tools=tools, model=model, emit=handover.give)

    def _chain(self, persona: Persona) -> Model:
        """Return the persona's models, which hold no turn's state: personas that ask the same share them."""
        from gateway.agents.model.models import build_chain, open_connections

        if self._http is None:
            self._http = open_connections()
        key = (persona.models, persona.base_url, persona.limits.step_timeout)
        model = self._chains.pop(key, None) or build_chain(persona, self._vendors, self._http)
        self._chains[key] = model
        if len(self._chains) > CHAINS_KEPT:
            self._chains.popitem(last=False)
        return model


def _load(vendors: Iterable[str]) -> None:
    """Import the library and the vendors' SDKs; runs in a thread."""
    from gateway.agents.model.models import load_vendor

    for vendor in vendors:
        load_vendor(vendor)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel an attempt and wait until its connections are closed.

    Cancelling is repeated: a library that catches CancelledError at the wrong moment swallows one.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_AFTER)


class _Handover:
    """Carries steps from the performing task to the consumer, who holds it up while dealing with one."""

    def __init__(self) -> None:
        self._steps: asyncio.Queue[Step | None] = asyncio.Queue()
        self._failure: BaseException | None = None

    async def watch(self, performance: Performance) -> None:
        """Play a performance and tell the consumer of its end, however it ends."""
        try:
            await performance.play()
        except BaseException as error:
            self._failure = error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._steps.put_nowait(None)

    async def give(self, step: Step) -> None:
        """Hand one step over; returns when the consumer comes back for the next."""
        self._steps.put_nowait(step)
        await self._steps.join()

    async def take(self) -> Step | None:
        """Return the next step, or None after the last; raises what the performance raised."""
        step = await self._steps.get()
        if step is None and self._failure is not None:
            if isinstance(self._failure, Exception):
                raise self._failure
            raise AgentError("The model run was cancelled from inside.", retryable=True)
        return step

    def taken(self) -> None:
        """Say that the step taken last was dealt with."""
        self._steps.task_done()
