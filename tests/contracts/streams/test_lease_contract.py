"""What leases promise: in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.held_lease import HeldLease
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.leases.lease_watch import lease_subject
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.port import Leases
from delivery.broker.stream_config import EVENTS, StreamConfig, ensure_streams
from delivery.errors import DeliveryError, LeaseBusy, LeaseLost
from nats_servers import NatsServer, nats_server

STREAM_CONFIG = StreamConfig(max_bytes=500_000_000)
THIS_HOLDER = LeaseHolder(instance="one", boot="1")
OTHER_HOLDER = LeaseHolder(instance="two", boot="1")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Run a server."""
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def nats_connection(server: NatsServer) -> AsyncIterator[NatsConnection]:
    """Connect to a server with our streams."""
    async with connect(server.url, token=server.token) as nats_connection:
        await ensure_streams(nats_connection, STREAM_CONFIG)
        yield nats_connection


@pytest.fixture(params=["memory", "jetstream"])
def leases(request: pytest.FixtureRequest) -> Leases:
    """Open every kind of leases."""
    if request.param == "memory":
        return MemoryLeases()
    return JetStreamLeases(request.getfixturevalue("nats_connection"), THIS_HOLDER)


async def test_a_lease_past_its_time_is_not_trusted() -> None:
    """A process that wakes after the expiry refuses to act, before any renewal has found the lease lost."""
    lease = HeldLease("t:a", lease_subject("t:a"), 1.0)
    lease.extend(1, monotonic())
    lease.ensure_held()
    lease.extend(1, monotonic() - 1.0)
    with pytest.raises(LeaseLost):
        lease.ensure_held()


async def test_a_lease_whose_session_is_past_its_time_is_not_trusted() -> None:
    """A process that wakes after its session has expired refuses to act, however long its lease lives."""
    session = HeldLease("tw:one", lease_subject("tw:one"), 2.0)
    lease = HeldLease("ts:1", lease_subject("ts:1"), 600.0, session)
    session.extend(1, monotonic())
    lease.extend(1, monotonic())
    lease.ensure_held()
    session.extend(1, monotonic() - 2.0)
    with pytest.raises(LeaseLost):
        lease.ensure_held()


async def test_a_held_lease_is_refused_to_others_and_free_after_release(leases: Leases) -> None:
    """Only one holds a name at a time; the next may hold it at once after release."""
    async with leases.acquire("t:a") as lease:
        lease.ensure_held()
        with pytest.raises(LeaseBusy):
            async with leases.acquire("t:a"):
                pass
        async with leases.acquire("t:b"):
            pass
    with pytest.raises(LeaseLost):
        lease.ensure_held()
    async with leases.acquire("t:a") as again:
        again.ensure_held()


async def test_what_is_acquired_locally_is_exclusive_until_its_release(leases: Leases) -> None:
    """Leases of which only the broker has the state are not acquired locally."""
    lease = leases.acquire_locally("t:a")
    if isinstance(leases, JetStreamLeases):
        assert lease is None
        return
    assert lease is not None
    lease.ensure_held()
    assert leases.acquire_locally("t:a") is None
    with pytest.raises(LeaseBusy):
        await leases.acquire("t:a").__aenter__()
    lease.release()
    with pytest.raises(LeaseLost):
        lease.ensure_held()
    async with leases.acquire("t:a"):
        assert leases.acquire_locally("t:a") is None


async def test_anybody_sees_whether_a_name_is_held(leases: Leases) -> None:
    """It is held from its acquisition to its release."""
    assert not await leases.is_held("t:a")
    async with leases.acquire("t:a"):
        assert await leases.is_held("t:a")
        assert not await leases.is_held("t:b")
    assert not await leases.is_held("t:a")


async def test_a_lease_ends_with_its_session(leases: Leases) -> None:
    """Once its session is released it is lost at once, and another replica may acquire it."""
    async with AsyncExitStack() as stack:
        session = leases.acquire("tw:one")
        within = await session.__aenter__()
        lease = await stack.enter_async_context(leases.acquire("ts:1", ttl=600, session=within))
        with pytest.raises(LeaseBusy):
            await leases.acquire("ts:1").__aenter__()
        await session.__aexit__(None, None, None)
        with pytest.raises(LeaseLost):
            lease.ensure_held()
        async with asyncio.timeout(60):
            await lease.wait_lost()
        async with leases.acquire("tw:one") as other:  # another session, of the same name
            async with leases.acquire("ts:1", session=other) as taken:
                taken.ensure_held()
            with pytest.raises(LeaseLost):
                lease.ensure_held()


async def test_a_lease_is_taken_over_when_the_session_of_its_dead_holder_expires(
    nats_connection: NatsConnection,
) -> None:
    """A holder that is killed releases neither; its long lease ends with its short session."""
    gone, other = (JetStreamLeases(nats_connection, one) for one in (THIS_HOLDER, OTHER_HOLDER))
    session = HeldLease("tw:one", lease_subject("tw:one"), 2.0)
    lease = HeldLease("ts:1", lease_subject("ts:1"), 600.0, session)
    await gone._write(session, 0)
    await gone._write(lease, 0)
    with pytest.raises(LeaseBusy):
        await other.acquire("ts:1").__aenter__()
    with other.watch("tw:one") as freed:
        async with asyncio.timeout(60):
            await freed.wait()
    async with other.acquire("ts:1") as taken:
        taken.ensure_held()


async def test_a_list_after_a_lease_has_what_was_acquired_before_it(leases: Leases) -> None:
    """Other kinds, and the lease itself, are not in it."""
    async with leases.acquire("t:one"), leases.acquire("ts:1") as lease:
        assert await leases.list_held("t", after=lease) == {"t:one"}


async def test_one_of_twenty_wins(leases: Leases) -> None:
    """Of many who try at the same time exactly one gets the lease."""
    done = asyncio.Event()

    async def attempt() -> bool:
        try:
            async with leases.acquire("t:race"):
                await done.wait()
                return True
        except LeaseBusy:
            return False

    tasks = [asyncio.create_task(attempt()) for _ in range(20)]
    while sum(task.done() for task in tasks) < 19:  # noqa: ASYNC110 - counted, not timed
        await asyncio.sleep(0.01)
    done.set()
    assert sum(await asyncio.gather(*tasks)) == 1


@pytest.mark.parametrize("name", ["*", "t:>", "t:a.b", "t:\r\n", "x" * 5000, "", "t:🕊"])
async def test_a_name_may_be_any_string(leases: Leases, name: str) -> None:
    """Names made of wildcards or separators are names like any other."""
    async with leases.acquire("t:a"), leases.acquire(name) as lease:
        lease.ensure_held()


async def test_a_lease_outlives_its_time_to_live_while_it_is_held(nats_connection: NatsConnection) -> None:
    """Renewal keeps others out for longer than the time to live."""
    mine, theirs = (
        JetStreamLeases(nats_connection, THIS_HOLDER),
        JetStreamLeases(nats_connection, OTHER_HOLDER),
    )
    async with mine.acquire("t:a", ttl=4.0) as lease:
        until = monotonic() + 6.0
        refusals = 0
        while monotonic() < until:
            lease.ensure_held()
            with pytest.raises(LeaseBusy):
                async with theirs.acquire("t:a"):
                    pass
            refusals += 1
            await asyncio.sleep(0.05)
        assert refusals > 10


async def test_an_abandoned_lease_expires(nats_connection: NatsConnection, server: NatsServer) -> None:
    """A holder that is cut off loses the right, and the log says why, before another can have it."""
    theirs = JetStreamLeases(nats_connection, OTHER_HOLDER)
    async with AsyncExitStack() as stack:
        lines = stack.enter_context(capture_logs())
        cut = await stack.enter_async_context(connect(server.url, token=server.token))
        lease = await stack.enter_async_context(JetStreamLeases(cut, THIS_HOLDER).acquire("t:a", ttl=1.5))
        await cut._close()  # as if the network were gone
        async with asyncio.timeout(10):
            await lease.wait_lost()
        assert ["NATS" in line["reason"] for line in lines if line["event"] == "lease.lost"] == [True], lines
        with pytest.raises(LeaseLost):
            lease.ensure_held()
        async with asyncio.timeout(10):
            while True:
                try:
                    async with theirs.acquire("t:a") as successor:
                        successor.ensure_held()
                        break
                except LeaseBusy:
                    await asyncio.sleep(0.05)


async def test_an_earlier_boot_of_a_sole_instance_is_succeeded_at_once(
    nats_connection: NatsConnection,
) -> None:
    """Who holds the data directory takes over what its dead predecessor held; others may not."""
    before = JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="1", sole=True))
    async with AsyncExitStack() as stack:
        lines = stack.enter_context(capture_logs())
        old = await stack.enter_async_context(before.acquire("t:a", ttl=1.5))
        shared = JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="2", sole=False))
        with pytest.raises(LeaseBusy):
            await stack.enter_async_context(shared.acquire("t:a"))
        after = JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="2", sole=True))
        async with after.acquire("t:a", ttl=1.5) as new:
            async with asyncio.timeout(10):
                await old.wait_lost()
            new.ensure_held()
        reasons = [line["reason"] for line in lines if line["event"] == "lease.lost"]
        assert reasons == ["the broker has another holder, or none"]


async def test_a_released_lease_leaves_nothing_that_lasts(nats_connection: NatsConnection) -> None:
    """Renewals and the release keep one message, and that one expires."""
    async with JetStreamLeases(nats_connection, THIS_HOLDER).acquire("t:a", ttl=4.0):
        await asyncio.sleep(2.8)  # two renewals pass
        assert (await nats_connection.api_request("STREAM.INFO.EVENTS"))["state"]["messages"] == 1
    async with asyncio.timeout(30):
        while True:
            if not (await nats_connection.api_request("STREAM.INFO.EVENTS"))["state"]["messages"]:
                break
            await asyncio.sleep(0.05)


async def test_a_lease_survives_a_broker_restart(nats_connection: NatsConnection, server: NatsServer) -> None:
    """Kill -9 of the server within the time to live costs the holder nothing."""
    async with JetStreamLeases(nats_connection, THIS_HOLDER).acquire("t:a", ttl=3.0) as lease:
        await server.restart()
        until = monotonic() + 3.5
        while monotonic() < until:
            lease.ensure_held()
            await asyncio.sleep(0.05)


async def test_a_cancelled_holder_releases(nats_connection: NatsConnection) -> None:
    """Cancelling the holder's task frees the lease at once, and no keeper goes on renewing it."""
    leases, entered = JetStreamLeases(nats_connection, THIS_HOLDER), asyncio.Event()

    async def work() -> None:
        async with leases.acquire("t:a", ttl=30):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with JetStreamLeases(nats_connection, OTHER_HOLDER).acquire("t:a"):
        pass


async def test_no_cancellation_is_lost_while_publishing(nats_connection: NatsConnection) -> None:
    """A task that publishes without pause always ends when it is cancelled."""

    async def publish() -> None:
        while True:
            try:
                await nats_connection.publish("lease.t.x", b"", {})
            except DeliveryError:
                continue

    for round_ in range(10):
        tasks = [asyncio.create_task(publish()) for _ in range(20)]
        await asyncio.sleep(0.002 * round_)
        for task in tasks:
            task.cancel()
        _, alive = await asyncio.wait(tasks, timeout=5)
        assert not alive


async def test_a_watched_lease_is_reported_when_it_is_released(leases: Leases) -> None:
    """A watcher learns of the release, and may then acquire the lease; a free one is reported too."""
    async with AsyncExitStack() as stack:
        held = leases.acquire("a:bot")
        await held.__aenter__()
        freed = stack.enter_context(leases.watch("a:bot"))
        await asyncio.sleep(0)
        assert not freed.is_set()
        await held.__aexit__(None, None, None)
        never_held = stack.enter_context(leases.watch("a:other"))
        async with asyncio.timeout(60):
            await asyncio.gather(freed.wait(), never_held.wait())
        async with leases.acquire("a:bot") as lease:
            lease.ensure_held()


async def test_held_leases_are_listed_by_kind(leases: Leases) -> None:
    """Released leases and those of other kinds are not in the list."""
    assert await leases.list_held("r") == frozenset()
    async with leases.acquire("r:one"), leases.acquire("a:bot"):
        async with leases.acquire("r:two"):
            assert await leases.list_held("r") == {"r:one", "r:two"}
        assert await leases.list_held("r") == {"r:one"}


async def test_a_watched_lease_is_reported_when_its_holder_is_gone(nats_connection: NatsConnection) -> None:
    """A holder that is killed releases nothing: the lease is reported when its time is over."""
    gone, standby = (JetStreamLeases(nats_connection, one) for one in (THIS_HOLDER, OTHER_HOLDER))
    lease = HeldLease("a:bot", lease_subject("a:bot"), 2.0)
    await gone._write(lease, 0)
    with pytest.raises(LeaseBusy):
        await standby.acquire("a:bot").__aenter__()
    with standby.watch("a:bot") as freed:
        async with asyncio.timeout(60):
            await freed.wait()
    async with standby.acquire("a:bot"):
        pass


async def test_a_standby_watches_hundreds_of_leases_with_one_request(
    server: NatsServer, nats_connection: NatsConnection
) -> None:
    """While another replica holds 300 bots, this one sends one request a second for all of them."""
    requests = list[str]()
    begun, over = asyncio.Event(), asyncio.Event()

    async def record(message: Msg) -> None:
        if message.subject == "$JS.API.INFO":  # the observer's own, which shows that it observes
            begun.set()
            return
        requests.append(message.subject)
        if len(requests) >= 3:  # three rounds
            over.set()

    holder, standby = (JetStreamLeases(nats_connection, one) for one in (THIS_HOLDER, OTHER_HOLDER))
    async with AsyncExitStack() as stack:
        for number in range(300):
            await holder._write(HeldLease(f"a:{number}", lease_subject(f"a:{number}"), 60), 0)
        observer = await stack.enter_async_context(connect(server.url, token=server.token))
        await stack.enter_async_context(observer.subscribe("$JS.API.>", record))
        async with asyncio.timeout(60):
            await observer.api_request("INFO")
            await begun.wait()
            requests.clear()
            watched = [stack.enter_context(standby.watch(f"a:{number}")) for number in range(300)]
            await over.wait()
    assert set(requests) == {f"$JS.API.DIRECT.GET.{EVENTS}"}
    assert not [one for one in watched if one.is_set()]
