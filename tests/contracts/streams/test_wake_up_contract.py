"""What signals promise: in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delivery.broker.connection import Link, connect
from delivery.broker.port import Queue, Signal, Signals
from delivery.broker.stream_config import Layout, ensure
from delivery.broker.wake_ups import JetStreamSignals, MemorySignals
from nats_servers import NatsServer, nats_server

LAYOUT = Layout(budget=500_000_000)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Run a server."""
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def link(server: NatsServer) -> AsyncIterator[Link]:
    """Connect to a server with our streams."""
    async with connect(server.url, token=server.token) as link:
        await ensure(link, LAYOUT)
        yield link


@pytest.fixture(params=["memory", "jetstream"])
def signals(request: pytest.FixtureRequest) -> Signals:
    """Open every kind of signals."""
    if request.param == "memory":
        return MemorySignals()
    return JetStreamSignals(request.getfixturevalue("link"), LAYOUT)


class Listening:
    """A listener that is asked for one signal at a time."""

    def __init__(self, signals: Signals, queue: Queue = Queue.TURN, at_most: int = 4) -> None:
        self.stop = asyncio.Event()
        self._signals = signals.listen(queue, at_most=at_most, stop=self.stop)

    async def next(self) -> Signal:
        """Return the next signal."""
        async with asyncio.timeout(15):
            return await anext(self._signals)

    async def silent(self, seconds: float) -> bool:
        """Tell whether nothing comes for a while; ends the listening."""
        asyncio.get_running_loop().call_later(seconds, self.stop.set)
        return [signal async for signal in self._signals] == []

    async def end(self) -> None:
        """Stop listening."""
        self.stop.set()
        assert await self.silent(0)


async def test_a_signal_reaches_its_queue_with_its_raw_key(signals: Signals) -> None:
    """The key arrives as it was sent, in its own queue only."""
    listening, other = Listening(signals), Listening(signals, Queue.HOOK)
    await signals.wake(Queue.TURN, "cnv_*.>é")
    signal = await listening.next()
    assert signal.key == "cnv_*.>é"
    await signal.done()
    assert await other.silent(0.1)
    assert await listening.silent(0.1)


async def test_many_signals_for_a_key_are_few(signals: Signals) -> None:
    """Before anyone listens, any number of wake-ups for one key is one."""
    for _ in range(50):
        await signals.wake(Queue.TURN, "a")
    listening = Listening(signals)
    await (await listening.next()).done()
    assert await listening.silent(0.2)


async def test_a_signal_sent_while_its_key_is_looked_at_comes_afterwards(signals: Signals) -> None:
    """A wake-up during the work is not swallowed by its completion."""
    listening = Listening(signals)
    await signals.wake(Queue.TURN, "a")
    first = await listening.next()
    await signals.wake(Queue.TURN, "a")
    await first.done()
    second = await listening.next()
    assert second.key == "a"
    await second.done()
    assert await listening.silent(0.2)


async def test_a_signal_given_back_comes_again(signals: Signals) -> None:
    """`later` brings the signal again."""
    listening = Listening(signals)
    await signals.wake(Queue.TURN, "a")
    await (await listening.next()).later(0.05)
    await (await listening.next()).done()
    await listening.end()


async def test_no_more_than_asked_for_are_undone(signals: Signals) -> None:
    """A listener with two undone signals of two gets the third when one is done."""
    listening = Listening(signals, at_most=2)
    for key in "abc":
        await signals.wake(Queue.TURN, key)
    one, two = await listening.next(), await listening.next()
    third = asyncio.ensure_future(listening.next())
    done, _ = await asyncio.wait({third}, timeout=0.2)
    assert not done
    await one.done()
    assert (await third).key not in {one.key, two.key}
    await two.done()
    await (third.result()).done()
    await listening.end()


async def test_a_timer_wakes_at_its_moment_and_the_last_one_counts(signals: Signals) -> None:
    """Timers for one key replace each other and never ring early."""
    listening = Listening(signals)
    start = datetime.now(UTC)
    for seconds in (30, 20, 1):
        await signals.wake_at(Queue.TURN, "a", start + timedelta(seconds=seconds))
    signal = await listening.next()
    assert signal.key == "a"
    assert datetime.now(UTC) >= start + timedelta(seconds=0.9)
    await signal.done()
    assert await listening.silent(0.2)


async def test_listening_ends_at_once_while_idle(signals: Signals) -> None:
    """A stopped listener ends without waiting for its pull."""
    listening = Listening(signals)
    async with asyncio.timeout(1.5):
        assert await listening.silent(0.1)


async def test_two_listeners_share_the_work(link: Link) -> None:
    """Each signal goes to one of the listeners."""
    signals = JetStreamSignals(link, LAYOUT)
    seen: list[str] = []
    stop, enough = asyncio.Event(), asyncio.Event()

    async def listen() -> None:
        async with aclosing(signals.listen(Queue.TURN, at_most=3, stop=stop)) as heard:  # type: ignore[type-var]
            async for signal in heard:
                seen.append(signal.key)
                await signal.done()
                if len(seen) >= 40:
                    enough.set()

    listeners = [asyncio.create_task(listen()) for _ in range(2)]
    for number in range(40):
        await signals.wake(Queue.TURN, f"k{number}")
    async with asyncio.timeout(20):
        await enough.wait()
    stop.set()
    await asyncio.gather(*listeners)
    assert sorted(seen) == sorted(f"k{number}" for number in range(40))


async def test_undelivered_signals_survive_a_broker_restart(link: Link, server: NatsServer) -> None:
    """Kill -9 of the server loses no wake-up it has stored, and the listener goes on."""
    signals = JetStreamSignals(link, LAYOUT)
    listening = Listening(signals)
    await signals.wake(Queue.TURN, "before")
    await (await listening.next()).done()
    await server.restart()
    assert await link.wait_up(10)
    await signals.wake(Queue.TURN, "after")
    keys = {(await listening.next()).key}
    while "after" not in keys:
        keys.add((await listening.next()).key)
    await listening.end()


async def test_a_deleted_stream_is_made_again(link: Link) -> None:
    """Wiping the stream in the middle of the work costs the wake-ups in it and nothing else."""
    signals = JetStreamSignals(link, LAYOUT)
    listening = Listening(signals)
    await signals.wake(Queue.TURN, "a")
    await (await listening.next()).done()
    await link.call("STREAM.DELETE.WORK")
    waiting = asyncio.ensure_future(listening.next())
    while not waiting.done():
        await signals.wake(Queue.TURN, "b")
        await asyncio.wait({waiting}, timeout=0.1)
    assert waiting.result().key == "b"
    await listening.end()
