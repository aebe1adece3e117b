"""The rate limiter: sends within a platform's limits, and capacity reserved for final texts."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.message import Address
from channels.port import ChannelLimits
from channels.telegram import plugin
from delivery.chat.rate_limit import (
    IN_FLIGHT,
    STRICT_SECONDS,
    RateLimiter,
    SendPriority,
    TokenBucket,
    strict_bucket,
)

GROUP = ChannelLimits(
    text=4096, room_sends_per_second=1, room_sends_per_minute=20, account_sends_per_second=30
)


class SleepClock:
    """A clock that moves when a task sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


def make_rate_limiter(clock: SleepClock, limits: ChannelLimits = GROUP) -> RateLimiter:
    """Return a budget on a clock of ours."""
    return RateLimiter(limits, clock=clock, sleep=clock.sleep)


@given(
    wishes=st.lists(st.tuples(st.sampled_from(SendPriority), st.floats(0, 5)), max_size=200),
    rate=st.floats(0.1, 50),
    capacity=st.floats(2, 60),
)
def test_a_bucket_never_gives_more_than_it_has(
    wishes: list[tuple[SendPriority, float]], rate: float, capacity: float
) -> None:
    """In any stretch of time no more tokens are taken than the capacity and the refill since."""
    now, taken, start = 0.0, 0, 0.0
    bucket = TokenBucket(rate=rate, capacity=capacity, reserve=1, now=start)
    for use, pause in wishes:
        now += pause
        if bucket.wait(use, now) == 0:
            bucket.consume(now)
            taken += 1
        assert taken <= capacity + rate * (now - start) + 1e-6


@given(
    pauses=st.lists(st.floats(0, 3), max_size=150),
    limit=st.floats(0.2, 60),
    seconds=st.sampled_from([1.0, 5.0, 60.0]),
)
@example(pauses=[0.0, 4.0], limit=1.5, seconds=5.0)
def test_no_stretch_of_time_sees_more_than_the_limit(
    pauses: list[float], limit: float, seconds: float
) -> None:
    """However the wishes come, any stretch of so many seconds holds at most the limit (and one at least)."""
    now, taken = 0.0, list[float]()
    bucket = strict_bucket(limit, seconds, now=now)
    for pause in pauses:
        now += pause
        if bucket.wait(SendPriority.FINAL, now) == 0:
            bucket.consume(now)
            taken.append(now)
    for start in taken:
        within = [moment for moment in taken if start <= moment < start + seconds]
        assert len(within) <= max(limit + 1e-6, 1)


def test_an_edit_does_not_delay_the_final_text() -> None:
    """Right after an edit the final text may go, and right after a final text no edit may."""
    rate_limiter = make_rate_limiter(SleepClock())
    assert rate_limiter.try_acquire_local(SendPriority.EDIT, "room")
    assert not rate_limiter.try_acquire_local(SendPriority.EDIT, "room")
    assert rate_limiter.try_acquire_local(SendPriority.FINAL, "room")
    assert rate_limiter.wait(SendPriority.EDIT, "room") > 0


@given(uses=st.lists(st.sampled_from([SendPriority.EDIT, SendPriority.TYPING]), max_size=100))
def test_drafts_never_take_the_final_text_s_token(uses: list[SendPriority]) -> None:
    """After any number of edits and typing indicators the final text may go at once, in a strict room too."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    rate_limiter.pause(0, room="room")
    for use in uses:
        rate_limiter.try_acquire_local(use, "room")
    assert rate_limiter.wait(SendPriority.FINAL, "room") == 0


def test_edits_over_minutes_leave_the_final_text_its_place() -> None:
    """Edits asked for ten times a second for five minutes stay within the room's limit and the reserve."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    rate_limiter.pause(0, room="room")
    edits = 0
    for _ in range(3000):
        clock.now += 0.1
        edits += rate_limiter.try_acquire_local(SendPriority.EDIT, "room")
        assert rate_limiter.wait(SendPriority.FINAL, "room") == 0
    assert 40 < edits <= 20 * 5


def test_drafts_in_all_rooms_leave_the_bot_its_reserve() -> None:
    """A hundred rooms full of edits leave the bot tokens for the final texts of others."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    for room in range(100):
        rate_limiter.try_acquire_local(SendPriority.EDIT, f"room {room}")
    rate_limiter.pause(0)
    assert sum(rate_limiter.try_acquire_local(SendPriority.FINAL, f"other {room}") for room in range(20)) >= 3


async def test_a_short_burst_of_final_texts_does_not_wait() -> None:
    """Five texts to one room go at once; ten go one a second from the sixth on."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    start = clock.now
    for _ in range(5):
        assert await rate_limiter.acquire(SendPriority.FINAL, "room", timeout=60) == 0
    assert clock.now == start
    for _ in range(5):
        assert await rate_limiter.acquire(SendPriority.FINAL, "room", timeout=60) == 0
    assert 5 <= clock.now - start < 6


async def test_after_a_429_the_room_keeps_strictly_to_the_limits() -> None:
    """A room that was too fast is given one text a second for ten minutes, its neighbour is not."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock, ChannelLimits(text=1, room_sends_per_second=1))
    rate_limiter.pause(2, room="room")
    start = clock.now
    for _ in range(100):
        assert await rate_limiter.acquire(SendPriority.FINAL, "room", timeout=60) == 0
    assert clock.now - start >= 2 + 99
    assert all(rate_limiter.try_acquire_local(SendPriority.FINAL, "neighbour") for _ in range(5))
    clock.now += STRICT_SECONDS
    assert all(rate_limiter.try_acquire_local(SendPriority.FINAL, "room") for _ in range(5))


def test_429s_in_several_rooms_make_the_whole_bot_strict() -> None:
    """When three rooms are refused within seconds, the bot's own limit bounds all sends together."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    assert all(rate_limiter.try_acquire_local(SendPriority.FINAL, f"before {room}") for room in range(300))
    for room in ("a", "b", "c"):
        rate_limiter.pause(1, room=room)
    said = 0
    for tick in range(1000):
        clock.now += 0.01
        said += rate_limiter.try_acquire_local(SendPriority.FINAL, f"after {tick}")
    assert said <= 30 * 10


async def test_a_wait_that_is_too_long_is_said_and_not_waited_for() -> None:
    """Beyond its timeout the caller gets the remaining wait, without waiting."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    rate_limiter.pause(60, room="room")
    assert await rate_limiter.acquire(SendPriority.FINAL, "room", timeout=5) == 60
    assert clock.now == 1000.0
    assert rate_limiter.try_acquire_local(SendPriority.FINAL, "another room")


def test_a_hold_ends_and_a_shorter_one_does_not_shorten_it() -> None:
    """The longest requested pause holds, then the room is open again."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock)
    rate_limiter.pause(10, room="room")
    rate_limiter.pause(2, room="room")
    assert rate_limiter.wait(SendPriority.FINAL, "room") == 10
    clock.now += 10
    assert rate_limiter.try_acquire_local(SendPriority.FINAL, "room")


def test_a_hold_of_the_bot_closes_every_room() -> None:
    """Without a room the hold is for all of them."""
    rate_limiter = make_rate_limiter(SleepClock())
    rate_limiter.pause(3)
    assert rate_limiter.wait(SendPriority.FINAL, "any") == 3


def test_memory_stays_bounded() -> None:
    """Quiet rooms are evicted; busy and paused ones are not."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(clock, ChannelLimits(text=1, account_sends_per_second=1e9))
    rate_limiter.pause(10_000, room="held")
    for room in range(20_000):
        clock.now += 0.01
        rate_limiter.try_acquire_local(SendPriority.FINAL, str(room))
    assert len(rate_limiter._rooms) < 3000
    assert rate_limiter.wait(SendPriority.FINAL, "held") > 0


async def test_many_rooms_wait_side_by_side() -> None:
    """Two hundred texts to ten rooms of a strict bot all go, within its rate; none is lost."""
    clock = SleepClock()
    rate_limiter = make_rate_limiter(
        clock, ChannelLimits(text=1, room_sends_per_second=1, account_sends_per_second=5)
    )
    rate_limiter.pause(0)

    async def speak(room: str) -> None:
        for _ in range(20):
            assert await rate_limiter.acquire(SendPriority.FINAL, room, timeout=1e6) == 0

    await asyncio.gather(*(speak(str(room)) for room in range(10)))
    assert clock.now - 1000 >= (200 - 5) / 5 - 1e-6


def test_the_limit_per_minute_is_for_crowded_rooms() -> None:
    """A private chat gets one text a second without end; a group is slowed to 20 a minute."""
    clock = SleepClock()
    rate_limiter = RateLimiter(GROUP, is_group=lambda room: room == "crowd", clock=clock, sleep=clock.sleep)
    rate_limiter.pause(0, room="quiet")  # strict from now on, as after a refusal
    rate_limiter.pause(0, room="crowd")
    said = {"quiet": 0, "crowd": 0}
    for _ in range(100):
        clock.now += 1.1
        for room in said:
            said[room] += rate_limiter.try_acquire_local(SendPriority.FINAL, room)
    assert said["quiet"] == 100
    assert said["crowd"] < 40


@pytest.mark.parametrize(("room", "crowded"), [("4711", False), ("-1234", True), ("-1001234567890", True)])
def test_telegrams_groups_are_crowded_and_private_chats_are_not(room: str, *, crowded: bool) -> None:
    """Only the adapter depends on the format of its room ids."""
    address = Address(channel="chn_1", room=room, thread="7")
    assert Address.room_of(address.destination) == room
    assert plugin.limits.is_group(room) is crowded


async def test_landing_waits_for_what_is_on_its_way_and_keeps_no_place() -> None:
    """A cancelled waiter releases its place too, so later senders do not wait for ever."""
    clock = SleepClock()
    rate_limiter = RateLimiter(GROUP, clock=clock, sleep=clock.sleep)
    async with rate_limiter.in_flight:
        landing = asyncio.create_task(rate_limiter.drain())
        await asyncio.sleep(0)
        assert not landing.done()
        landing.cancel()
        await asyncio.gather(landing, return_exceptions=True)
    async with asyncio.timeout(5):
        for _ in range(IN_FLIGHT):
            await rate_limiter.in_flight.acquire()
        for _ in range(IN_FLIGHT):
            rate_limiter.in_flight.release()
        await rate_limiter.drain()
