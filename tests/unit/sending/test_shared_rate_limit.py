"""One bot, several replicas: the platform's limit is kept by all of them, and final texts find their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.port import Limits
from delivery.chat.rate_limit import STRICT_SECONDS, Use
from delivery.chat.shared_rate_limit import BATCH, Allowances, Emptied, Grant, SharedBudget, Wish, settle
from delivery.database.engine import Unavailable

LIMITS = Limits(text=1, room_sends_per_second=1000, room_sends_per_minute=20, account_sends_per_second=20)
CROWD = "crowd"


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


class Shelf(Allowances):
    """Allowances in memory, on the same clock; counts what is drawn."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.draws = 0
        self.is_away = False
        self._kept: dict[str, tuple[float, float, float]] = {}

    async def draw(self, name: str, wish: Wish, empty: Emptied) -> Grant:
        """Meet a wish."""
        await asyncio.sleep(0)  # as a database does, let others run meanwhile
        if self.is_away:
            raise Unavailable("gone")
        self.draws += 1
        now = self.clock()
        level, seen, strict_until = self._kept.get(name, (1e9, now, 0.0))
        bucket = empty(now).restored(level, seen)
        grant, strict_until = settle(bucket, wish, now=now, strict_until=strict_until)
        self._kept[name] = (*bucket.state, strict_until)
        return grant


def replicas(number: int, *, strict: bool = True) -> tuple[Clock, Shelf, list[SharedBudget]]:
    """Return the budgets of one bot in so many processes, after a 429 or in good weather."""
    clock = Clock()
    shelf = Shelf(clock)
    budgets = [
        SharedBudget(
            LIMITS,
            name="bot",
            allowances=shelf,
            crowded=lambda room: room == CROWD,
            clock=clock,
            sleep=clock.sleep,
        )
        for _ in range(number)
    ]
    if strict:
        for budget in budgets:
            budget.hold(0)
            budget.hold(0, room=CROWD)
    return clock, shelf, budgets


def most_within(moments: Sequence[float], seconds: float) -> int:
    """Return how many of these moments the fullest stretch of so many seconds holds."""
    return max((sum(start <= one < start + seconds for one in moments) for start in moments), default=0)


wishes = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(Use), st.sampled_from(["a", "b", CROWD]), st.floats(0, 0.3)),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(wishes=wishes, number=st.integers(1, 4))
def test_the_limit_is_kept_by_all_replicas_together(
    wishes: list[tuple[int, Use, str, float]], number: int
) -> None:
    """However drafts and final texts come at however many replicas, no second holds more than the limit."""
    clock, _, budgets = replicas(number)

    async def play() -> list[tuple[float, str]]:
        said = []
        for place, use, room, pause in wishes:
            clock.now += pause
            if await budgets[place % number].ask(use, room) == 0:
                said.append((clock.now, room))
        return said

    said = asyncio.run(play())
    assert most_within([moment for moment, _ in said], 1.0) <= LIMITS.account_sends_per_second
    crowd = [moment for moment, room in said if room == CROWD]
    assert most_within(crowd, 60.0) <= LIMITS.room_sends_per_minute


@settings(max_examples=40, deadline=None)
@given(
    drafts=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([Use.EDIT, Use.TYPING])), max_size=150),
    final=st.integers(0, 3),
)
def test_drafts_never_use_what_a_final_text_needs(drafts: list[tuple[int, Use]], final: int) -> None:
    """After any number of drafts, anywhere, two final texts go at once, in a crowd too."""
    clock, _, budgets = replicas(4)

    async def play() -> None:
        for place, use in drafts:
            clock.now += 0.001
            await budgets[place].ask(use, CROWD)
        assert await budgets[final].ask(Use.FINAL, CROWD) == 0
        assert await budgets[(final + 1) % 4].ask(Use.FINAL, CROWD) == 0

    asyncio.run(play())


async def test_final_texts_are_served_while_drafts_press() -> None:
    """With drafts asking all the time at four replicas, final texts come at the rate they come at without."""
    took = []
    for pressing in (False, True):
        clock, _, budgets = replicas(4)
        begun = clock.now
        for number in range(60):
            if pressing:
                for budget in budgets:
                    await budget.ask(Use.EDIT, "b")
            assert await budgets[number % 4].take(Use.FINAL, "a", at_most=60) == 0
        took.append(clock.now - begun)
    without, beside = took
    assert beside <= without * 1.2 + 0.5


async def test_final_texts_in_good_weather_cost_a_write_for_several() -> None:
    """Counted and told in batches; drafts at another replica leave room for them all the same."""
    clock, shelf, (one, other) = replicas(2, strict=False)
    for _ in range(50):
        clock.now += 0.01
        assert await one.ask(Use.FINAL, "a") == 0
    assert shelf.draws <= 50 / BATCH + 2
    assert await other.ask(Use.EDIT, "b") > 0


async def test_those_who_wait_together_share_a_batch() -> None:
    """Forty final texts after a 429 take fewer draws than that, and none is forgotten."""
    clock, shelf, (one, _) = replicas(2)
    before = shelf.draws
    waits = [1.0] * 40
    while any(waits):
        clock.now += 0.1
        waits = await asyncio.gather(*(one.ask(Use.FINAL, "a") for wait in waits if wait))
    assert shelf.draws - before <= 40 * 2 / 3
    assert clock.now - 1000 < 5


async def test_a_429_makes_every_replica_strict() -> None:
    """The one that was refused tells the others through the allowance, and they keep to the limit."""
    clock, _, (one, other) = replicas(2, strict=False)
    one.hold(1)
    clock.now += 2.5
    await one.ask(Use.FINAL, "a")
    await other.ask(Use.FINAL, "b")
    assert other.is_strict(Use.FINAL)
    said = 0
    for _ in range(100):
        clock.now += 0.01
        said += await other.ask(Use.FINAL, "b") == 0
    assert said <= LIMITS.account_sends_per_second
    clock.now += STRICT_SECONDS
    assert not other.is_strict(Use.FINAL)


async def test_without_the_database_each_keeps_to_its_own() -> None:
    """A final text is not held up by a database that is away, and the platform's limit still holds here."""
    clock, shelf, (one, _) = replicas(2)
    shelf.is_away = True
    said = 0
    for _ in range(200):
        clock.now += 0.01
        said += await one.ask(Use.FINAL, "a") == 0
    assert 1 < said <= 2 * LIMITS.account_sends_per_second


@pytest.mark.parametrize("use", list(Use))
async def test_memory_stays_bounded(use: Use) -> None:
    """Crowded rooms that were left alone for long are forgotten."""
    clock = Clock()
    budget = SharedBudget(LIMITS, name="bot", allowances=Shelf(clock), clock=clock, sleep=clock.sleep)
    for room in range(5000):
        clock.now += 1
        await budget.ask(use, str(room))
    assert len(budget._purses) < 3000
