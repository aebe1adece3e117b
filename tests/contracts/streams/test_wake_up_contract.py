"""What signals promise: in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.port import WakeUp, WakeUps, WorkQueue
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.broker.wake_ups import JetStreamWakeUps, MemoryWakeUps
from delivery.events.sharding import SHARDS, work_shard
from gateway.infra.shard_wake_ups import ShardWakeUps
from nats_servers import NatsServer, nats_server

STREAM_CONFIG = StreamConfig(max_bytes=500_000_000)


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


@pytest.fixture
async def shard_wake_ups(nats_connection: NatsConnection) -> AsyncIterator[ShardWakeUps]:
    """Open the signals of a process that holds all shards."""
    wake_ups = ShardWakeUps(nats_connection, JetStreamWakeUps(nats_connection, STREAM_CONFIG))
    async with AsyncExitStack() as stack:
        for shard in range(SHARDS):
            await stack.enter_async_context(wake_ups.receive(frozenset(WorkQueue), shard))
        yield wake_ups


@pytest.fixture(params=["memory", "jetstream", "shards"])
def wake_ups(request: pytest.FixtureRequest) -> WakeUps:
    """Open every kind of signals."""
    if request.param == "memory":
        return MemoryWakeUps()
    if request.param == "shards":
        return cast("WakeUps", request.getfixturevalue("shard_wake_ups"))
    return JetStreamWakeUps(request.getfixturevalue("nats_connection"), STREAM_CONFIG)


class WakeUpReader:
    """A listener that is asked for one signal at a time."""

    def __init__(self, wake_ups: WakeUps, queue: WorkQueue = WorkQueue.TURN, at_most: int = 4) -> None:
        self.stop = asyncio.Event()
        self._wake_ups = wake_ups.subscribe(queue, at_most=at_most, stop=self.stop)

    async def next(self) -> WakeUp:
        """Return the next signal."""
        async with asyncio.timeout(15):
            return await anext(self._wake_ups)

    async def assert_silent(self, seconds: float) -> bool:
        """Return whether nothing comes for a while; ends the listening."""
        asyncio.get_running_loop().call_later(seconds, self.stop.set)
        return [wake_up async for wake_up in self._wake_ups] == []

    async def end(self) -> None:
        """Stop listening."""
        self.stop.set()
        assert await self.assert_silent(0)


async def test_a_signal_reaches_its_queue_with_its_raw_key(wake_ups: WakeUps) -> None:
    """The key arrives as it was sent, in its own queue only."""
    listening, other = WakeUpReader(wake_ups), WakeUpReader(wake_ups, WorkQueue.HOOK)
    await wake_ups.publish(WorkQueue.TURN, "cnv_*.>é", account="acc_1")
    wake_up = await listening.next()
    assert (wake_up.account, wake_up.key) == ("acc_1", "cnv_*.>é")
    await wake_up.ack()
    assert await other.assert_silent(0.1)
    assert await listening.assert_silent(0.1)


async def test_nothing_is_yielded_after_the_stop(wake_ups: WakeUps) -> None:
    """A wake-up that was received already is left to another subscriber once `stop` is set."""
    reader = WakeUpReader(wake_ups)
    for key in ("first", "second"):
        await wake_ups.publish(WorkQueue.TURN, key, account="acc_1")
    await (await reader.next()).ack()
    await asyncio.sleep(0.1)  # the second arrives before the stop
    await reader.end()
    other = WakeUpReader(wake_ups)
    assert (await other.next()).key == "second"
    await other.end()


async def test_many_signals_for_a_key_are_few(wake_ups: WakeUps) -> None:
    """Before anyone listens, any number of wake-ups for one key is one."""
    for _ in range(50):
        await wake_ups.publish(WorkQueue.TURN, "a", account="acc_1")
    listening = WakeUpReader(wake_ups)
    await (await listening.next()).ack()
    assert await listening.assert_silent(0.2)


async def test_a_signal_sent_while_its_key_is_looked_at_comes_afterwards(wake_ups: WakeUps) -> None:
    """A wake-up during the work is not swallowed by its completion."""
    listening = WakeUpReader(wake_ups)
    await wake_ups.publish(WorkQueue.TURN, "a", account="acc_1")
    first = await listening.next()
    await wake_ups.publish(WorkQueue.TURN, "a", account="acc_1")
    await first.ack()
    second = await listening.next()
    assert second.key == "a"
    await second.ack()
    assert await listening.assert_silent(0.2)


async def test_no_more_than_asked_for_are_undone(wake_ups: WakeUps) -> None:
    """A listener with two undone signals of two gets the third when one is done."""
    listening = WakeUpReader(wake_ups, at_most=2)
    for key in "abc":
        await wake_ups.publish(WorkQueue.TURN, key, account="acc_1")
    one, two = await listening.next(), await listening.next()
    third = asyncio.ensure_future(listening.next())
    done, _ = await asyncio.wait({third}, timeout=0.2)
    assert not done
    await one.ack()
    assert (await third).key not in {one.key, two.key}
    await two.ack()
    await (third.result()).ack()
    await listening.end()


async def test_a_timer_wakes_at_its_moment_and_the_last_one_counts(wake_ups: WakeUps) -> None:
    """Timers for one key replace each other and never ring early."""
    listening = WakeUpReader(wake_ups)
    start = datetime.now(UTC)
    for seconds in (30, 20, 1):
        await wake_ups.publish_at(WorkQueue.TURN, "a", start + timedelta(seconds=seconds), account="acc_1")
    wake_up = await listening.next()
    assert (wake_up.account, wake_up.key) == ("acc_1", "a")
    assert datetime.now(UTC) >= start + timedelta(seconds=0.9)
    await wake_up.ack()
    assert await listening.assert_silent(0.2)


async def test_listening_ends_at_once_while_idle(wake_ups: WakeUps) -> None:
    """A stopped listener ends without waiting for its pull."""
    listening = WakeUpReader(wake_ups)
    async with asyncio.timeout(1.5):
        assert await listening.assert_silent(0.1)


async def test_two_listeners_share_the_work(nats_connection: NatsConnection) -> None:
    """Each signal goes to one of the listeners."""
    wake_ups = JetStreamWakeUps(nats_connection, STREAM_CONFIG)
    seen: list[str] = []
    stop, enough = asyncio.Event(), asyncio.Event()

    async def listen() -> None:
        async with aclosing(wake_ups.subscribe(WorkQueue.TURN, at_most=3, stop=stop)) as received:  # type: ignore[type-var]
            async for wake_up in received:
                seen.append(wake_up.key)
                await wake_up.ack()
                if len(seen) >= 40:
                    enough.set()

    listeners = [asyncio.create_task(listen()) for _ in range(2)]
    for number in range(40):
        await wake_ups.publish(WorkQueue.TURN, f"k{number}", account="acc_1")
    async with asyncio.timeout(20):
        await enough.wait()
    stop.set()
    await asyncio.gather(*listeners)
    assert sorted(seen) == sorted(f"k{number}" for number in range(40))


async def test_undelivered_signals_survive_a_broker_restart(
    nats_connection: NatsConnection, server: NatsServer
) -> None:
    """Kill -9 of the server loses no wake-up it has stored, and the listener goes on."""
    wake_ups = JetStreamWakeUps(nats_connection, STREAM_CONFIG)
    listening = WakeUpReader(wake_ups)
    await wake_ups.publish(WorkQueue.TURN, "before", account="acc_1")
    await (await listening.next()).ack()
    await server.restart()
    assert await nats_connection.wait_connected(10)
    await wake_ups.publish(WorkQueue.TURN, "after", account="acc_1")
    keys = {(await listening.next()).key}
    while "after" not in keys:
        keys.add((await listening.next()).key)
    await listening.end()


async def test_a_deleted_stream_is_made_again(nats_connection: NatsConnection) -> None:
    """Wiping the stream in the middle of the work costs the wake-ups in it and nothing else."""
    wake_ups = JetStreamWakeUps(nats_connection, STREAM_CONFIG)
    listening = WakeUpReader(wake_ups)
    await wake_ups.publish(WorkQueue.TURN, "a", account="acc_1")
    await (await listening.next()).ack()
    await nats_connection.api_request("STREAM.DELETE.WORK")
    waiting = asyncio.ensure_future(listening.next())
    while not waiting.done():
        await wake_ups.publish(WorkQueue.TURN, "b", account="acc_1")
        await asyncio.wait({waiting}, timeout=0.1)
    assert waiting.result().key == "b"
    await listening.end()


async def test_a_signal_goes_to_the_holder_of_its_shard(server: NatsServer) -> None:
    """Signals and timers of any replica reach the one that receives for the shard, and no other."""
    async with AsyncExitStack() as stack:
        replicas = []
        for _ in range(2):
            nats = await stack.enter_async_context(connect(server.url, token=server.token))
            await ensure_streams(nats, STREAM_CONFIG)
            replicas.append(ShardWakeUps(nats, JetStreamWakeUps(nats, STREAM_CONFIG)))
        keys = [f"k{number}" for number in range(20)]
        for shard in {work_shard(key) for key in keys}:
            await stack.enter_async_context(replicas[0].receive({WorkQueue.TURN}, shard))
        await replicas[0]._nats.api_request("INFO")  # the server has the subscriptions
        holder, other = (WakeUpReader(replica, at_most=50) for replica in replicas)
        idle = asyncio.ensure_future(other.next())
        for key in keys:
            await replicas[1].publish(WorkQueue.TURN, key, account="acc_1")
        soon = datetime.now(UTC) + timedelta(seconds=1)
        await replicas[1].publish_at(WorkQueue.TURN, keys[0], soon, account="acc_2")
        received = [await holder.next() for _ in range(len(keys) + 1)]
        assert sorted(one.key for one in received) == sorted([*keys, keys[0]])
        assert received[-1].account == "acc_2"
        assert not idle.done()
        other.stop.set()
        await asyncio.gather(idle, return_exceptions=True)
        await holder.end()
