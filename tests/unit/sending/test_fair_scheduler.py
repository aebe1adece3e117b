"""Pools are shared fairly: no account starves, and a burst of one leaves places for the others."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.fair_gate import FairGate, working_for
from delivery.fair_scheduler import FairScheduler, PoolSize

ACCOUNTS = ("ann", "bob", "cleo", "dan")
SIZES = st.builds(PoolSize, places=st.integers(1, 40), share=st.sampled_from([0.25, 0.5, 0.875, 1.0]))
ARRIVALS = st.lists(st.sampled_from(ACCOUNTS), max_size=120)


def started(scheduler: FairScheduler[int]) -> list[str]:
    """Start all that may start; returns the accounts in that order."""
    accounts: list[str] = []
    while (entry := scheduler.start_next()) is not None:
        accounts.append(entry[0])
    return accounts


def start_one(scheduler: FairScheduler[int]) -> str:
    """Start what is next; returns its account."""
    entry = scheduler.start_next()
    assert entry is not None
    return entry[0]


@given(size=SIZES, burst=st.integers(1, 100), later=st.integers(1, 20))
def test_a_burst_of_one_leaves_the_last_places_to_others(size: PoolSize, burst: int, later: int) -> None:
    """Whatever one account asks for, another gets at once its own share of what is left."""
    scheduler = FairScheduler[int](size)
    for work in range(burst):
        scheduler.add("ann", work)
    held = len(started(scheduler))
    assert held == min(burst, size.ceiling())
    for work in range(later):
        scheduler.add("bob", work)
    if size.places > 1 and size.share < 1:
        assert held < size.places
        assert len(started(scheduler)) == min(later, size.ceiling(held), size.places - held) >= 1


@given(size=SIZES, arrivals=ARRIVALS, data=st.data())
def test_no_account_with_waiting_work_starves(
    size: PoolSize, arrivals: list[str], data: st.DataObject
) -> None:
    """Before an account without a place gets one, no other account gets two of those that become free."""
    scheduler = FairScheduler[int](size)
    running: list[str] = []
    passed: dict[str, list[str]] = {}
    for work, account in enumerate(arrivals):
        scheduler.add(account, work)
        if not scheduler.held(account):
            passed.setdefault(account, [])
        ends: bool = data.draw(st.booleans())
        if running and ends:
            scheduler.finish(running.pop(data.draw(st.integers(0, len(running) - 1))))
        while (entry := scheduler.start_next()) is not None:
            running.append(entry[0])
            passed.pop(entry[0], None)
            for overtaken in passed.values():
                overtaken.append(entry[0])
        for overtaken in passed.values():
            assert len(overtaken) == len(set(overtaken))


@given(size=SIZES, arrivals=ARRIVALS, data=st.data())
def test_all_work_starts_once_and_in_the_order_of_its_account(
    size: PoolSize, arrivals: list[str], data: st.DataObject
) -> None:
    """As long as running work ends, everything starts: each account's work in order, never more than fit."""
    scheduler = FairScheduler[int](size)
    for work, account in enumerate(arrivals):
        scheduler.add(account, work)
    running: list[str] = []
    done: list[tuple[str, int]] = []
    while True:
        while (entry := scheduler.start_next()) is not None:
            running.append(entry[0])
            done.append(entry)
        assert len(running) <= size.places
        assert scheduler.free == size.places - len(running)
        if not running:
            break
        scheduler.finish(running.pop(data.draw(st.integers(0, len(running) - 1))))
    for account in ACCOUNTS:
        expected = [work for work, owner in enumerate(arrivals) if owner == account]
        assert [work for owner, work in done if owner == account] == expected
    assert not scheduler.waiting_work()


@given(size=SIZES, arrivals=ARRIVALS)
def test_places_stay_empty_only_below_the_ceilings(size: PoolSize, arrivals: list[str]) -> None:
    """When nothing more may start, the pool is full or every waiting account is at its ceiling."""
    scheduler = FairScheduler[int](size)
    for work, account in enumerate(arrivals):
        scheduler.add(account, work)
    started(scheduler)
    for account in ACCOUNTS:
        if scheduler.waiting(account) and scheduler.free:
            others = size.places - scheduler.free - scheduler.held(account)
            assert scheduler.held(account) >= size.ceiling(others)


def test_a_single_place_is_taken_in_turn() -> None:
    """In a pool with one place, the accounts that wait take turns."""
    scheduler = FairScheduler[int](PoolSize(places=1))
    order: list[str] = []
    for work in range(4):
        scheduler.add("ann", work)
    for work in range(2):
        scheduler.add("bob", work)
    while (entry := scheduler.start_next()) is not None:
        order.append(entry[0])
        scheduler.finish(entry[0])
    assert order == ["ann", "bob", "ann", "bob", "ann", "ann"]


def test_who_asks_for_little_is_next() -> None:
    """Work that comes while another account's is done starts before more of it; then they take turns."""
    scheduler = FairScheduler[int](PoolSize(places=1))
    order: list[str] = []
    for work in range(4):
        scheduler.add("busy", work)
    for work in range(6):
        order.append(account := start_one(scheduler))
        if work in {0, 1}:
            scheduler.add("quiet", work)
        scheduler.finish(account)
    assert order == ["busy", "quiet", "busy", "quiet", "busy", "busy"]


def test_accounts_that_come_again_and_again_let_the_others_start() -> None:
    """Two accounts that ask again as soon as they have started do not overtake a third one that waits."""
    scheduler = FairScheduler[int](PoolSize(places=1))
    order: list[str] = []
    for work, account in enumerate(("ann", "bob", "cleo", "cleo", "cleo")):
        scheduler.add(account, work)
    for work in range(9):
        order.append(account := start_one(scheduler))
        if account != "cleo":
            scheduler.add(account, 10 + work)
        scheduler.finish(account)
    assert order == ["ann", "bob", "cleo"] * 3


def test_an_account_starts_at_once_while_another_waits_at_its_ceiling() -> None:
    """The places that a busy account leaves are free for others, but not for the busy account."""
    scheduler = FairScheduler[int](PoolSize(places=8))
    for work in range(20):
        scheduler.add("busy", work)
    started(scheduler)
    assert scheduler.waiting("busy")
    assert scheduler.start_at_once("quiet")
    assert not scheduler.start_at_once("busy")


def test_work_that_no_longer_waits_is_not_started() -> None:
    """Discarded work takes no place, and discarding what does not wait changes nothing."""
    scheduler = FairScheduler[int](PoolSize(places=4))
    scheduler.add("ann", 1)
    scheduler.add("ann", 2)
    scheduler.discard("ann", 1)
    scheduler.discard("ann", 7)
    scheduler.discard("bob", 1)
    assert scheduler.start_next() == ("ann", 2)
    assert scheduler.start_next() is None
    assert scheduler.free == 3


@pytest.mark.parametrize(("places", "share"), [(0, 0.5), (4, 0.0), (4, 1.5)])
def test_a_pool_in_which_nothing_could_start_is_refused(places: int, share: float) -> None:
    """The error names the value."""
    with pytest.raises(ValueError, match=r"places is 0|share is (0\.0|1\.5)"):
        PoolSize(places=places, share=share)


async def test_a_gate_lets_another_account_in_while_one_fills_it() -> None:
    """With eighty callers of one account at the gate, the caller of another is inside at once."""
    gate, inside = FairGate(PoolSize(places=8)), list[str]()
    leave = asyncio.Event()

    async def call(account: str) -> None:
        with working_for(account):
            async with gate.hold():
                inside.append(account)
                await leave.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(80):
            group.create_task(call("ann"))
        await asyncio.sleep(0)
        group.create_task(call("bob"))
        await asyncio.sleep(0)
        assert inside == ["ann"] * 7 + ["bob"]
        leave.set()
    assert len(inside) == 81


async def test_a_caller_that_gives_up_leaves_its_place_to_the_next() -> None:
    """Callers that are cancelled, while they wait or just as they get in, block no other caller."""
    gate, inside = FairGate(PoolSize(places=1)), list[str]()

    async def call(name: str) -> None:
        async with gate.hold("ann"):
            inside.append(name)

    async with gate.hold("ann"):
        tasks = [asyncio.create_task(call(name)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        tasks[0].cancel()
    tasks[1].cancel()  # it has just got in
    await asyncio.gather(*tasks, return_exceptions=True)
    assert inside == ["c"]
    await call("d")
    assert inside == ["c", "d"]
