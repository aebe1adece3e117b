"""One bot, several replicas: all of them keep the platform's limit, and final texts are sent in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.port import ChannelLimits
from delivery.chat.rate_limit import STRICT_SECONDS, SendPriority
from delivery.chat.shared_rate_limit import (
    MAX_BATCH,
    NewBucket,
    SharedRateLimiter,
    TokenBucketStore,
    TokenGrant,
    TokenRequest,
    grant_tokens,
)
from delivery.database.engine import DatabaseUnavailable

LIMITS = ChannelLimits(
    text=1, room_sends_per_second=1000, room_sends_per_minute=20, account_sends_per_second=20
)
GROUP_ROOM = "crowd"


class ReplicaClock:
    """A clock that moves when a task sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


class MemoryTokenBuckets(TokenBucketStore):
    """Allowances in memory, on the same clock; counts what is drawn."""

    def __init__(self, clock: ReplicaClock) -> None:
        self.clock = clock
        self.acquire_count = 0
        self.is_unavailable = False
        self._buckets: dict[str, tuple[float, float, float]] = {}

    async def acquire(self, name: str, request: TokenRequest, new_bucket: NewBucket) -> TokenGrant:
        """Meet a wish."""
        await asyncio.sleep(0)  # as a database does, let others run
        if self.is_unavailable:
            raise DatabaseUnavailable("gone")
        self.acquire_count += 1
        now = self.clock()
        level, seen, strict_until = self._buckets.get(name, (1e9, now, 0.0))
        bucket = new_bucket(now).restore(level, seen)
        grant, strict_until = grant_tokens(bucket, request, now=now, strict_until=strict_until)
        self._buckets[name] = (*bucket.state, strict_until)
        return grant


def open_replicas(
    number: int, *, strict: bool = True
) -> tuple[ReplicaClock, MemoryTokenBuckets, list[SharedRateLimiter]]:
    """Return the rate limiters of one bot in so many processes, with or without an earlier 429."""
    clock = ReplicaClock()
    store = MemoryTokenBuckets(clock)
    budgets = [
        SharedRateLimiter(
            LIMITS,
            name="bot",
            store=store,
            is_group=lambda room: room == GROUP_ROOM,
            clock=clock,
            sleep=clock.sleep,
        )
        for _ in range(number)
    ]
    if strict:
        for rate_limiter in budgets:
            rate_limiter.pause(0)
            rate_limiter.pause(0, room=GROUP_ROOM)
    return clock, store, budgets


def max_in_window(moments: Sequence[float], seconds: float) -> int:
    """Return how many of these moments the fullest stretch of so many seconds holds."""
    return max((sum(start <= one < start + seconds for one in moments) for start in moments), default=0)


token_requests = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(SendPriority),
        st.sampled_from(["a", "b", GROUP_ROOM]),
        st.floats(0, 0.3),
    ),
    max_size=120,
)


@given(wishes=token_requests, number=st.integers(1, 4))
def test_the_limit_is_kept_by_all_replicas_together(
    wishes: list[tuple[int, SendPriority, str, float]], number: int
) -> None:
    """However drafts and final texts come at however many replicas, no second holds more than the limit."""
    clock, _, budgets = open_replicas(number)

    async def play() -> list[tuple[float, str]]:
        said = []
        for place, use, room, pause in wishes:
            clock.now += pause
            if await budgets[place % number].try_acquire(use, room) == 0:
                said.append((clock.now, room))
        return said

    said = asyncio.run(play())
    assert max_in_window([moment for moment, _ in said], 1.0) <= LIMITS.account_sends_per_second
    crowd = [moment for moment, room in said if room == GROUP_ROOM]
    assert max_in_window(crowd, 60.0) <= LIMITS.room_sends_per_minute


@given(
    drafts=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([SendPriority.EDIT, SendPriority.TYPING])), max_size=150
    ),
    final=st.integers(0, 3),
)
def test_drafts_never_use_what_a_final_text_needs(drafts: list[tuple[int, SendPriority]], final: int) -> None:
    """After any number of drafts, anywhere, two final texts go at once, in a crowd too."""
    clock, _, budgets = open_replicas(4)

    async def play() -> None:
        for place, use in drafts:
            clock.now += 0.001
            await budgets[place].try_acquire(use, GROUP_ROOM)
        assert await budgets[final].try_acquire(SendPriority.FINAL, GROUP_ROOM) == 0
        assert await budgets[(final + 1) % 4].try_acquire(SendPriority.FINAL, GROUP_ROOM) == 0

    asyncio.run(play())


async def test_final_texts_are_served_while_drafts_press() -> None:
    """With drafts asking all the time at four replicas, final texts come at the rate they come at without."""
    took = []
    for pressing in (False, True):
        clock, _, budgets = open_replicas(4)
        begun = clock.now
        for number in range(60):
            if pressing:
                for rate_limiter in budgets:
                    await rate_limiter.try_acquire(SendPriority.EDIT, "b")
            assert await budgets[number % 4].acquire(SendPriority.FINAL, "a", timeout=60) == 0
        took.append(clock.now - begun)
    without, beside = took
    assert beside <= without * 1.2 + 0.5


async def test_final_texts_without_rate_limits_cost_a_write_for_several() -> None:
    """Tokens are counted and granted in batches; drafts at another replica still leave room."""
    clock, store, (one, other) = open_replicas(2, strict=False)
    for _ in range(50):
        clock.now += 0.01
        assert await one.try_acquire(SendPriority.FINAL, "a") == 0
    assert store.acquire_count <= 50 / MAX_BATCH + 2
    assert await other.try_acquire(SendPriority.EDIT, "b") > 0


async def test_those_who_wait_together_share_a_batch() -> None:
    """Forty final texts after a 429 take fewer grants than that, and none is lost."""
    clock, store, (one, _) = open_replicas(2)
    before = store.acquire_count
    waits = [1.0] * 40
    while any(waits):
        clock.now += 0.1
        waits = await asyncio.gather(*(one.try_acquire(SendPriority.FINAL, "a") for wait in waits if wait))
    assert store.acquire_count - before <= 40 * 2 / 3
    assert clock.now - 1000 < 5


async def test_a_429_makes_every_replica_strict() -> None:
    """The refused replica informs the others through the shared bucket, and they keep to the limit."""
    clock, _, (one, other) = open_replicas(2, strict=False)
    one.pause(1)
    clock.now += 2.5
    await one.try_acquire(SendPriority.FINAL, "a")
    await other.try_acquire(SendPriority.FINAL, "b")
    assert other.enforces_stated_limits(SendPriority.FINAL)
    said = 0
    for _ in range(100):
        clock.now += 0.01
        said += await other.try_acquire(SendPriority.FINAL, "b") == 0
    assert said <= LIMITS.account_sends_per_second
    clock.now += STRICT_SECONDS
    assert not other.enforces_stated_limits(SendPriority.FINAL)


async def test_without_the_database_each_keeps_to_its_own() -> None:
    """A final text is not held up by a database that is away, and the platform's limit still holds here."""
    clock, store, (one, _) = open_replicas(2)
    store.is_unavailable = True
    said = 0
    for _ in range(200):
        clock.now += 0.01
        said += await one.try_acquire(SendPriority.FINAL, "a") == 0
    assert 1 < said <= 2 * LIMITS.account_sends_per_second


@pytest.mark.parametrize("use", list(SendPriority))
async def test_memory_stays_bounded(use: SendPriority) -> None:
    """Buckets of rooms that were unused for long are evicted."""
    clock = ReplicaClock()
    rate_limiter = SharedRateLimiter(
        LIMITS, name="bot", store=MemoryTokenBuckets(clock), clock=clock, sleep=clock.sleep
    )
    for room in range(3500):
        clock.now += 1
        await rate_limiter.try_acquire(use, str(room))
    assert len(rate_limiter._tokens_by_room) < 3000
