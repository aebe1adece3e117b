"""Wake-ups on the broker: one message per key and queue, so that repeated wake-ups coalesce.

Wake-ups are hints and SQL is the source of truth, so no publish waits for a confirmation. Each subscription
pulls through its own inbox, so that its pull request ends with it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from time import monotonic

import structlog
from nats.aio.msg import Msg

from delivery.broker.connection import NatsConnection
from delivery.broker.port import WakeUp, WakeUps, WorkQueue
from delivery.broker.stream_config import WORK, StreamConfig, ensure_streams, subject_token
from delivery.database.clock import utc_now
from delivery.errors import DeliveryError
from delivery.events.event import rfc3339
from delivery.fair_scheduler import SYSTEM

_log = structlog.get_logger(__name__)

_SECOND = 1_000_000_000
_PULL_SECONDS = 2.0
_ACK_WAIT_SECONDS = 30
_BACK_OFF = (0.1, 0.2, 0.5, 1.0, 2.0)
_AWAY_TIMEOUT = 1.0
_SEPARATOR = "\0"


def encode_wake_up(account: str, key: str) -> bytes:
    """Return the message of a wake-up."""
    return f"{account}{_SEPARATOR}{key}".encode()


def decode_wake_up(data: bytes) -> tuple[str, str]:
    """Return the account and the key; the account is SYSTEM in a wake-up of an earlier version."""
    account, separator, key = data.decode(errors="replace").partition(_SEPARATOR)
    return (account, key) if separator else (SYSTEM, account)


class _PulledWakeUp(WakeUp):
    """A wake-up received by a pull."""

    def __init__(
        self, nats: NatsConnection, message: Msg, capacity_freed: asyncio.Event, unacked: set[str]
    ) -> None:
        self.account, self.key = decode_wake_up(message.data)
        self._nats = nats
        self._reply = message.reply
        self._capacity_freed = capacity_freed
        self._unacked = unacked
        unacked.add(self._reply)

    async def ack(self) -> None:
        """Confirm that the wake-up was received."""
        if self._reply in self._unacked:
            self._unacked.discard(self._reply)
            self._capacity_freed.set()
            await self._nats.publish_nowait(self._reply, b"+ACK")


class JetStreamWakeUps(WakeUps):
    """Wake-ups in the stream WORK; the stream and its consumers are created again if they are deleted."""

    def __init__(self, nats: NatsConnection, config: StreamConfig) -> None:
        self._nats = nats
        self._config = config

    async def publish(self, queue: WorkQueue, key: str, *, account: str) -> None:
        """Send a wake-up without confirmation."""
        await self._nats.publish_nowait(f"work.{queue}.{subject_token(key)}", encode_wake_up(account, key))

    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Schedule a wake-up on the broker; a second call for the same key replaces the schedule."""
        name = subject_token(key)
        headers = {
            "Nats-Schedule": f"@at {rfc3339(moment)}",
            "Nats-Schedule-Target": f"work.{queue}.{name}",
        }
        await self._nats.publish_nowait(f"sched.{queue}.{name}", encode_wake_up(account, key), headers)

    async def subscribe(
        self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event
    ) -> AsyncIterator[WakeUp]:
        """Yield wake-ups until `stop`, at most `at_most` unacknowledged at a time."""
        pulling = _PullSubscription(self._nats, self._config, queue, at_most, stop)
        ending = asyncio.create_task(pulling.wake_at_stop())
        unwatch = self._nats.on_reconnect(pulling.restart_pull)
        try:
            async with self._nats.subscribe(f"{pulling.inbox}.*", pulling.receive):
                while (wake_up := await pulling.next()) is not None:
                    yield wake_up
        finally:
            unwatch()
            ending.cancel()
            await pulling.nak_unread()


class _PullSubscription:
    """Consecutive pulls on a durable consumer."""

    def __init__(
        self,
        nats: NatsConnection,
        config: StreamConfig,
        queue: WorkQueue,
        at_most: int,
        stop: asyncio.Event,
    ) -> None:
        self.inbox = f"{nats.new_inbox()}.{secrets.token_hex(4)}"
        self._nats = nats
        self._config = config
        self._queue = queue
        self._at_most = at_most
        self._stop = stop
        self._unacked: set[str] = set()
        self._capacity_freed = asyncio.Event()
        self._messages: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._pulls = 0
        self._expected = 0
        self._pull_deadline = 0.0
        self._failures = 0
        self._ready = False

    async def receive(self, message: Msg) -> None:
        """Queue a message that the broker sent to the inbox."""
        self._messages.put_nowait(message)

    async def wake_at_stop(self) -> None:
        """Let a `next` that waits see that it is to stop."""
        await self._stop.wait()
        self._capacity_freed.set()
        self._messages.put_nowait(None)

    def restart_pull(self) -> None:
        """Start a new pull: the broker has lost the pending request."""
        self._messages.put_nowait(None)

    async def next(self) -> WakeUp | None:
        """Return the next wake-up once fewer than `at_most` are unacknowledged; None after `stop`."""
        while not self._stop.is_set():
            await self._wait_for_capacity()
            if self._expected <= 0 and self._messages.empty():
                await self._pull()
            message = await self._next_message()
            if message is None:
                self._expected = 0
            elif message.reply:
                self._expected -= 1  # a message keeps its subject: only statuses name the pull
                self._failures = 0
                return _PulledWakeUp(self._nats, message, self._capacity_freed, self._unacked)
            else:
                await self._handle_status(message)
        return None

    @property
    def _pull_inbox(self) -> str:
        return f"{self.inbox}.{self._pulls}"

    async def _wait_for_capacity(self) -> None:
        while len(self._unacked) >= self._at_most and not self._stop.is_set():
            self._capacity_freed.clear()
            await self._capacity_freed.wait()

    async def _pull(self) -> None:
        if not self._ready and not await self._ensure_consumer():
            return
        self._pulls += 1
        free = self._at_most - len(self._unacked)
        request = {"batch": free, "expires": int(_PULL_SECONDS * _SECOND)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{WORK}.{self._queue}"
        sent = await self._nats.request_to(subject, json.dumps(request).encode(), self._pull_inbox)
        self._expected = free
        self._pull_deadline = monotonic() + (_PULL_SECONDS + 0.5 if sent else 0.0)
        if not sent:
            await self._nats.wait_connected(_AWAY_TIMEOUT)

    async def _next_message(self) -> Msg | None:
        """Return the next message of the pull, or None when the pull is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._pull_deadline - monotonic())):
                return await self._messages.get()
        return None

    async def _handle_status(self, message: Msg) -> None:
        """End the pull by a status message; without a consumer, create it before the next pull."""
        if message.subject != self._pull_inbox:
            return
        self._expected = 0
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status in {"404", "408"}:
            return
        if status == "409" and "Deleted" not in headers.get("Description", ""):
            await self._back_off()
            return
        self._ready = False
        await self._back_off()

    async def _back_off(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACK_OFF[min(self._failures, len(_BACK_OFF) - 1)]):
                await self._stop.wait()
        self._failures += 1

    async def _ensure_consumer(self) -> bool:
        """Create the stream and the consumer if they are missing; return whether both exist."""
        if not await self._nats.wait_connected(_AWAY_TIMEOUT):
            return False
        try:
            await ensure_streams(self._nats, self._config, timeout=0)
            response = await self._nats.api_request(
                f"CONSUMER.CREATE.{WORK}.{self._queue}", self._consumer_config()
            )
        except DeliveryError as error:
            _log.debug("queue.prepare_failed", queue=self._queue, error=str(error))
            await self._back_off()
            return False
        if "error" in response:
            description = response["error"].get("description")
            _log.warning("consumer.create_failed", queue=self._queue, error=description)
            await self._back_off()
            return False
        self._ready = True
        return True

    def _consumer_config(self) -> dict[str, object]:
        config = {
            "name": str(self._queue),
            "durable_name": str(self._queue),
            "filter_subject": f"work.{self._queue}.*",
            "ack_policy": "explicit",
            "ack_wait": _ACK_WAIT_SECONDS * _SECOND,
            "deliver_policy": "all",
            "max_deliver": -1,  # attempts are counted in SQL
            "max_ack_pending": 1024,
        }
        return {"stream_name": WORK, "config": config, "action": ""}

    async def nak_unread(self) -> None:
        """Return the unread wake-ups, so that other subscribers need not wait for the timeout."""
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if message is not None and message.reply:
                await self._nats.publish_nowait(message.reply, b"-NAK")


class MemoryWakeUps(WakeUps):
    """Wake-ups of a process that has its broker and its database to itself.

    Timers run on the event loop's clock. The janitor repeats what ends with the process, and what a change of
    the clock delays.
    """

    def __init__(self) -> None:
        self._waiting: dict[WorkQueue, dict[str, str]] = {queue: {} for queue in WorkQueue}
        self._available: dict[WorkQueue, asyncio.Event] = {queue: asyncio.Event() for queue in WorkQueue}
        self._timers: dict[tuple[WorkQueue, str], asyncio.TimerHandle] = {}

    async def publish(self, queue: WorkQueue, key: str, *, account: str) -> None:
        """Queue the key, unless it is queued already."""
        self._add(queue, key, account)

    def _add(self, queue: WorkQueue, key: str, account: str) -> None:
        self._waiting[queue][key] = account
        self._available[queue].set()

    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Queue the key at a moment, in place of its earlier timer."""
        earlier = self._timers.pop((queue, key), None)
        if earlier is not None:
            earlier.cancel()
        seconds = max(0.0, (moment - utc_now()).total_seconds())
        self._timers[queue, key] = asyncio.get_running_loop().call_later(
            seconds, self._on_timer, queue, key, account
        )

    def _on_timer(self, queue: WorkQueue, key: str, account: str) -> None:
        del self._timers[queue, key]
        self._add(queue, key, account)

    async def subscribe(
        self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event
    ) -> AsyncIterator[WakeUp]:
        """Yield the queued keys in order, until `stop`."""
        unacked: set[_MemoryWakeUp] = set()
        ending = asyncio.create_task(self._end_with(queue, stop))
        try:
            while True:
                while (not self._waiting[queue] or len(unacked) >= at_most) and not stop.is_set():
                    self._available[queue].clear()
                    await self._available[queue].wait()
                if stop.is_set():
                    return
                yield self._pop(queue, unacked)
        finally:
            ending.cancel()

    async def _end_with(self, queue: WorkQueue, stop: asyncio.Event) -> None:
        await stop.wait()
        self._available[queue].set()

    def _pop(self, queue: WorkQueue, unacked: set[_MemoryWakeUp]) -> _MemoryWakeUp:
        key, account = next(iter(self._waiting[queue].items()))
        del self._waiting[queue][key]
        wake_up = _MemoryWakeUp(self, queue, account, key, unacked)
        unacked.add(wake_up)
        return wake_up

    def capacity_freed(self, queue: WorkQueue) -> None:
        """Let a subscriber check whether it may receive more."""
        self._available[queue].set()


class _MemoryWakeUp(WakeUp):
    """A wake-up of `MemoryWakeUps`."""

    def __init__(
        self,
        wake_ups: MemoryWakeUps,
        queue: WorkQueue,
        account: str,
        key: str,
        unacked: set[_MemoryWakeUp],
    ) -> None:
        self.account = account
        self.key = key
        self._wake_ups = wake_ups
        self._queue = queue
        self._unacked = unacked

    async def ack(self) -> None:
        """Confirm that the wake-up was received."""
        self._unacked.discard(self)
        self._wake_ups.capacity_freed(self._queue)
