"""Functions of an adapter whose modules are imported when they are called, because they import its SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

from channels.port import CheckResult
from egress.guard import EgressGuard


def probe_of(module: str) -> Callable[[Any, EgressGuard], Awaitable[tuple[CheckResult, ...]]]:
    """Return the function `probe` of a module."""

    async def probe(settings: Any, guard: EgressGuard) -> tuple[CheckResult, ...]:
        found: tuple[CheckResult, ...] = await import_module(module).probe(settings, guard)
        return found

    return probe


def simulator_of(module: str) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Return what runs the simulator of a module's `simulate`, with the settings that lead to it."""

    @asynccontextmanager
    async def simulate() -> AsyncIterator[tuple[Any, dict[str, Any]]]:
        async with import_module(module).simulate() as simulator:
            yield simulator, simulator.settings()

    return simulate
