"""A provider or a sandbox that does not answer delays the removal of no other account's sandboxes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gateway.maintenance.sandbox_passes import VISITS_AT_ONCE, ReaperPasses
from memory_reservations import MemoryReservations
from memory_sandboxes import MemoryProvider
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, ReaperHooks
from sandbox.lifecycle.reservations import Reservation, SandboxRequest
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import SandboxId, SandboxSpec

PREFIX = "dovecote-here-"


class HangingDeletions(MemoryProvider):
    """A provider whose deletions of some labels hang until the event `answers`."""

    def __init__(self, *hanging: str) -> None:
        super().__init__()
        self.hanging = hanging
        self.answers = asyncio.Event()
        self.requests: list[str] = []
        self.deleted = asyncio.Event()

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete an instance, or wait."""
        label = self.instances[sandbox_id].label
        self.requests.append(label)
        if label.startswith(self.hanging):
            await self.answers.wait()
        await super().destroy(sandbox_id)
        self.deleted.set()


@dataclass(kw_only=True)
class ReapedProviders:
    """Two providers with the reaper's passes, in which each sandbox's record was deleted."""

    slow: HangingDeletions
    quick: HangingDeletions = field(default_factory=HangingDeletions)
    reservations: MemoryReservations = field(default_factory=MemoryReservations)

    def __post_init__(self) -> None:
        """Open the pools."""
        providers = {"slow": self.slow, "quick": self.quick}
        self.pools = {
            name: Pool(Backend(provider=provider, reservations=self.reservations), timeout=1.0)
            for name, provider in providers.items()
        }
        teardowns = {name: Teardown(pool.backend, pool.evict) for name, pool in self.pools.items()}
        hooks = ReaperHooks(get_spec=_no_spec, list_running_jobs=_no_jobs, end_jobs=_end_nothing)
        self.passes = ReaperPasses(Reaper(self.reservations, teardowns, hooks))

    async def add(self, provider: str, account: str, name: str) -> None:
        """Create a sandbox of an account."""
        spec = SandboxSpec(label=f"{PREFIX}{account}-{name}", namespace="space")
        owner = Owner(account=account, scope=Scope.SESSION, conversation="cnv_1")
        await self.pools[provider].acquire(SandboxRequest(spec=spec, owner=owner, provider=provider))


async def _no_spec(_row: Reservation) -> SandboxSpec | None:
    return None


async def _no_jobs(_row: Reservation) -> list[str]:
    return []


async def _end_nothing(_row: Reservation, _why: str) -> None:
    return None


@pytest.fixture
async def reaped() -> AsyncIterator[ReapedProviders]:
    """Return two providers, of which `slow` hangs with the sandboxes of the account `one`."""
    made = ReapedProviders(slow=HangingDeletions(f"{PREFIX}one-"))
    yield made
    await made.passes.aclose()


async def test_a_provider_that_hangs_delays_no_other(reaped: ReapedProviders) -> None:
    """The other provider's sandbox is deleted, and no visit that goes on is begun twice."""
    await reaped.add("slow", "one", "a")
    await reaped.add("quick", "two", "b")
    first = asyncio.create_task(reaped.passes.visit_all())
    async with asyncio.timeout(30):
        await reaped.quick.deleted.wait()
    await reaped.passes.visit_all(patience=0)
    assert reaped.slow.requests == [f"{PREFIX}one-a"]
    reaped.slow.answers.set()
    async with asyncio.timeout(30):
        await first
    assert (reaped.slow.instances, reaped.reservations.rows) == ({}, {})


async def test_sandboxes_that_hang_delay_no_other_account(reaped: ReapedProviders) -> None:
    """An account cannot use all places of a provider, however many of its sandboxes hang."""
    for number in range(VISITS_AT_ONCE + 1):
        await reaped.add("slow", "one", str(number))
    await reaped.add("slow", "two", "a")
    await reaped.passes.visit_all(patience=0)
    async with asyncio.timeout(30):
        await reaped.slow.deleted.wait()
    assert f"{PREFIX}two-a" not in reaped.reservations.rows


async def test_visits_that_wait_for_nothing_leave_the_event_loop_to_others() -> None:
    """Between two steps of another task at most VISITS_AT_ONCE of many sandboxes are visited."""
    reservations, ticks, visits = MemoryReservations(), 0, Counter[int]()

    async def count_visit(_row: Reservation) -> SandboxSpec | None:
        visits[ticks] += 1
        return SandboxSpec(label="any", namespace="space")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    pool = Pool(Backend(provider=MemoryProvider(), reservations=reservations), timeout=1.0)
    hooks = ReaperHooks(get_spec=count_visit, list_running_jobs=_no_jobs, end_jobs=_end_nothing)
    passes = ReaperPasses(Reaper(reservations, {"memory": Teardown(pool.backend, pool.evict)}, hooks))
    for number in range(4 * VISITS_AT_ONCE):
        spec = SandboxSpec(label=f"{PREFIX}{number}", namespace="space")
        owner = Owner(account="one", scope=Scope.SESSION, conversation="cnv_1")
        await pool.acquire(SandboxRequest(spec=spec, owner=owner, provider="memory"))
    ticking = asyncio.create_task(tick())
    await passes.visit_all()
    ticking.cancel()
    await passes.aclose()
    assert visits.total() == 4 * VISITS_AT_ONCE
    assert max(visits.values()) <= VISITS_AT_ONCE


async def test_a_sweep_that_hangs_delays_no_other_provider(reaped: ReapedProviders) -> None:
    """The orphans of the other provider are deleted before; the first one's are once it answers."""
    await reaped.add("slow", "one", "a")
    await reaped.add("quick", "two", "b")
    reaped.reservations.rows.clear()
    sweep = asyncio.create_task(reaped.passes.sweep(PREFIX))
    async with asyncio.timeout(30):
        await reaped.quick.deleted.wait()
    reaped.slow.answers.set()
    async with asyncio.timeout(30):
        assert await sweep == 2
    assert reaped.slow.instances == {}


async def test_an_orphan_that_hangs_delays_no_other_orphan(reaped: ReapedProviders) -> None:
    """The other orphan of the same provider is deleted while the deletion of the first one hangs."""
    await reaped.add("slow", "one", "a")
    await reaped.add("slow", "two", "b")
    reaped.reservations.rows.clear()
    sweep = asyncio.create_task(reaped.passes.sweep(PREFIX))
    async with asyncio.timeout(30):
        await reaped.slow.deleted.wait()
    assert [spec.label for spec in reaped.slow.instances.values()] == [f"{PREFIX}one-a"]
    reaped.slow.answers.set()
    async with asyncio.timeout(30):
        assert await sweep == 2
