"""Wake-ups on the broker: one message per key and queue, so that floods coalesce by themselves.

Signals are hints and SQL is the truth, hence nothing waits for a confirmation here. A listener pulls through
an inbox of its own, so that ending it takes its request off the broker with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from time import monotonic

from nats.aio.msg import Msg

from delivery.broker.connection import Link
from delivery.broker.port import Queue, Signal, Signals
from delivery.broker.stream_config import WORK, Layout, ensure, token
from delivery.database.clock import utc_now
from delivery.errors import DeliveryError
from delivery.events.event import rfc3339

_log = logging.getLogger(__name__)

_SECOND = 1_000_000_000
_PULL_SECONDS = 2.0
_ACK_WAIT_SECONDS = 30
_BACK_OFF = (0.1, 0.2, 0.5, 1.0, 2.0)
_AWAY_TIMEOUT = 1.0


class _Pulled(Signal):
    """A wake-up out of a pull."""

    def __init__(self, link: Link, message: Msg, freed: asyncio.Event, undone: set[str]) -> None:
        self.key = message.data.decode(errors="replace")
        self._link = link
        self._reply = message.reply
        self._freed = freed
        self._undone = undone
        undone.add(self._reply)

    async def done(self) -> None:
        """Acknowledge."""
        await self._settle(b"+ACK")

    async def later(self, seconds: float) -> None:
        """Give back with a delay."""
        await self._settle(b"-NAK " + json.dumps({"delay": int(seconds * _SECOND)}).encode())

    async def working(self) -> None:
        """Reset the broker's clock for this signal."""
        await self._link.post(self._reply, b"+WPI")

    async def _settle(self, verdict: bytes) -> None:
        if self._reply in self._undone:
            self._undone.discard(self._reply)
            self._freed.set()
            await self._link.post(self._reply, verdict)


class JetStreamSignals(Signals):
    """Signals in the stream WORK; the layout is made again when the stream or a consumer vanishes."""

    def __init__(self, link: Link, layout: Layout) -> None:
        self._link = link
        self._layout = layout

    async def wake(self, queue: Queue, key: str) -> None:
        """Send and forget."""
        await self._link.post(f"work.{queue}.{token(key)}", key.encode())

    async def wake_at(self, queue: Queue, key: str, moment: datetime) -> None:
        """Schedule on the broker; the same key again replaces the schedule."""
        name = token(key)
        headers = {
            "Nats-Schedule": f"@at {rfc3339(moment)}",
            "Nats-Schedule-Target": f"work.{queue}.{name}",
        }
        await self._link.post(f"sched.{queue}.{name}", key.encode(), headers)

    async def listen(self, queue: Queue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[Signal]:
        """Pull as many as may be undone, again and again, until `stop`."""
        listener = _Listener(self._link, self._layout, queue, at_most)
        ending = asyncio.create_task(listener.end_with(stop))
        unwatch = self._link.watch_reconnects(listener.forget_pull)
        try:
            async with self._link.subscribed(f"{listener.inbox}.*", listener.receive):
                while (signal := await listener.next()) is not None:
                    yield signal
        finally:
            unwatch()
            ending.cancel()
            await listener.give_back()


class _Listener:
    """One pull after another on a durable consumer."""

    def __init__(self, link: Link, layout: Layout, queue: Queue, at_most: int) -> None:
        self.inbox = f"{link.new_inbox()}.{secrets.token_hex(4)}"
        self._link = link
        self._layout = layout
        self._queue = queue
        self._at_most = at_most
        self._undone: set[str] = set()
        self._freed = asyncio.Event()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._pulls = 0
        self._open = 0
        self._ends = 0.0
        self._failures = 0
        self._ready = False

    async def receive(self, message: Msg) -> None:
        """Take what the broker sends to the inbox."""
        self._arrived.put_nowait(message)

    async def end_with(self, stop: asyncio.Event) -> None:
        """End `next` when `stop` is set."""
        await stop.wait()
        self._ended.set()
        self._freed.set()
        self._arrived.put_nowait(None)

    def forget_pull(self) -> None:
        """Pull anew: the broker has forgotten who was waiting."""
        self._arrived.put_nowait(None)

    async def next(self) -> Signal | None:
        """Return the next signal as soon as fewer than `at_most` are undone, None at the end."""
        while not self._ended.is_set():
            await self._make_room()
            if self._open <= 0 and self._arrived.empty():
                await self._pull()
            message = await self._arrival()
            if message is None:
                self._open = 0
            elif message.reply:
                self._open -= 1  # a message keeps its subject: only statuses name the pull
                self._failures = 0
                return _Pulled(self._link, message, self._freed, self._undone)
            else:
                await self._judge(message)
        return None

    @property
    def _pull_inbox(self) -> str:
        return f"{self.inbox}.{self._pulls}"

    async def _make_room(self) -> None:
        while len(self._undone) >= self._at_most and not self._ended.is_set():
            self._freed.clear()
            await self._freed.wait()

    async def _pull(self) -> None:
        if not self._ready and not await self._prepare():
            return
        self._pulls += 1
        free = self._at_most - len(self._undone)
        request = {"batch": free, "expires": int(_PULL_SECONDS * _SECOND)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{WORK}.{self._queue}"
        sent = await self._link.ask(subject, json.dumps(request).encode(), self._pull_inbox)
        self._open = free
        self._ends = monotonic() + (_PULL_SECONDS + 0.5 if sent else 0.0)
        if not sent:
            await self._link.wait_up(_AWAY_TIMEOUT)

    async def _arrival(self) -> Msg | None:
        """Return what came for the pull, or None when it is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._ends - monotonic())):
                return await self._arrived.get()
        return None

    async def _judge(self, message: Msg) -> None:
        """Read a status: the pull is over, or there is nobody to pull from."""
        if message.subject != self._pull_inbox:
            return
        self._open = 0
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status in {"404", "408"}:
            return
        if status == "409" and "Deleted" not in headers.get("Description", ""):
            await self._pause()
            return
        self._ready = False
        await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACK_OFF[min(self._failures, len(_BACK_OFF) - 1)]):
                await self._ended.wait()
        self._failures += 1

    async def _prepare(self) -> bool:
        """Make the stream and the consumer if they are missing."""
        if not await self._link.wait_up(_AWAY_TIMEOUT):
            return False
        try:
            await ensure(self._link, self._layout, patience=0)
            answer = await self._link.call(f"CONSUMER.CREATE.{WORK}.{self._queue}", self._wanted())
        except DeliveryError as error:
            _log.debug("cannot prepare the queue %s: %s", self._queue, error)
            await self._pause()
            return False
        if "error" in answer:
            _log.warning("cannot make the consumer %s: %s", self._queue, answer["error"].get("description"))
            await self._pause()
            return False
        self._ready = True
        return True

    def _wanted(self) -> dict[str, object]:
        config = {
            "name": str(self._queue),
            "durable_name": str(self._queue),
            "filter_subject": f"work.{self._queue}.*",
            "ack_policy": "explicit",
            "ack_wait": _ACK_WAIT_SECONDS * _SECOND,
            "deliver_policy": "all",
            "max_deliver": -1,  # attempts are counted in SQL
            "max_ack_pending": 1024,  # those given back with a delay count too
        }
        return {"stream_name": WORK, "config": config, "action": ""}

    async def give_back(self) -> None:
        """Return what arrived and was never looked at, so that others need not wait for the time-out."""
        while not self._arrived.empty():
            message = self._arrived.get_nowait()
            if message is not None and message.reply:
                await self._link.post(message.reply, b"-NAK")


class MemorySignals(Signals):
    """Signals in one process, for tests; timers run on the loop's clock."""

    def __init__(self) -> None:
        self._waiting: dict[Queue, dict[str, None]] = {queue: {} for queue in Queue}
        self._some: dict[Queue, asyncio.Event] = {queue: asyncio.Event() for queue in Queue}
        self._timers: dict[tuple[Queue, str], asyncio.TimerHandle] = {}

    async def wake(self, queue: Queue, key: str) -> None:
        """Remember the key once."""
        self.put(queue, key)

    def put(self, queue: Queue, key: str) -> None:
        """Remember the key once."""
        self._waiting[queue][key] = None
        self._some[queue].set()

    async def wake_at(self, queue: Queue, key: str, moment: datetime) -> None:
        """Set a timer, replacing the key's earlier one."""
        self.put_in(queue, key, (moment - utc_now()).total_seconds())

    def put_in(self, queue: Queue, key: str, seconds: float) -> None:
        """Remember the key in so many seconds."""
        former = self._timers.pop((queue, key), None)
        if former is not None:
            former.cancel()
        self._timers[queue, key] = asyncio.get_running_loop().call_later(
            max(0.0, seconds), self.put, queue, key
        )

    async def listen(self, queue: Queue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[Signal]:
        """Yield remembered keys in order, until `stop`."""
        undone: set[_Remembered] = set()
        ending = asyncio.create_task(self._end_with(queue, stop))
        try:
            while True:
                while (not self._waiting[queue] or len(undone) >= at_most) and not stop.is_set():
                    self._some[queue].clear()
                    await self._some[queue].wait()
                if stop.is_set():
                    return
                yield self._take(queue, undone)
        finally:
            ending.cancel()

    async def _end_with(self, queue: Queue, stop: asyncio.Event) -> None:
        await stop.wait()
        self._some[queue].set()

    def _take(self, queue: Queue, undone: set[_Remembered]) -> _Remembered:
        key = next(iter(self._waiting[queue]))
        del self._waiting[queue][key]
        signal = _Remembered(self, queue, key, undone)
        undone.add(signal)
        return signal

    def freed(self, queue: Queue) -> None:
        """Note that a listener may have room again."""
        self._some[queue].set()


class _Remembered(Signal):
    """A wake-up out of memory."""

    def __init__(self, signals: MemorySignals, queue: Queue, key: str, undone: set[_Remembered]) -> None:
        self.key = key
        self._signals = signals
        self._queue = queue
        self._undone = undone

    async def done(self) -> None:
        """Forget it."""
        self._undone.discard(self)
        self._signals.freed(self._queue)

    async def later(self, seconds: float) -> None:
        """Remember it again after a while."""
        await self.done()
        self._signals.put_in(self._queue, self.key, seconds)

    async def working(self) -> None:
        """Nothing runs out in memory."""
