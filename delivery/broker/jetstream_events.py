"""The event stream on JetStream: appends by compare-and-set, reads by direct get, no consumer per reader."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import structlog

from delivery.background import log_errors, wait_for_any
from delivery.broker import subscriptions as hubs
from delivery.broker.connection import NatsConnection
from delivery.broker.incomplete_log import LogHoles
from delivery.broker.message_codec import (
    EXPECTED,
    EXPECTED_SUBJECT,
    NUMBER,
    TTL,
    StoredMessage,
    decode_message,
    encode_headers,
    has_more,
)
from delivery.broker.stream_config import (
    EVENTS,
    FILL_WARNING,
    LogUsage,
    conversation_subjects,
    lasting_subject,
    transient_subject,
)
from delivery.broker.subscriptions import SubscriptionHub
from delivery.errors import AppendConflict, BrokerUnreachable, DeliveryError
from delivery.events.event import TURN_ENDS, Event
from delivery.events.port import EventStream, StoredEvent, StreamBounds, Tail
from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize

_log = structlog.get_logger(__name__)

DELTA_SECONDS = 3600
"""Seconds after which the broker deletes a delta that `remove_deltas` has left."""

REMOVE_EVERY = 5.0
_NO_MESSAGE = 10037
_MAX_REMEMBERED = 10_000
_TRANSIENT_TRIES = 3
_TRANSIENT_SECONDS = 1.0
"""Seconds for each step of publishing a delta, which is then dropped: the agent waits for it."""

_READS_AT_ONCE = 32

HasExpired = Callable[[str], Awaitable[bool]]
"""Returns whether a conversation of which no event is stored had some that have expired.

Otherwise the stream has lost them, and relays publish them again from the first one.
"""


@dataclass(frozen=True, slots=True)
class _Page:
    """Stored events of one subject; if there are more of them, `end` is the seq of the last one read."""

    events: list[StoredEvent]
    end: int | None

    def up_to(self, seq: int | None) -> _Page:
        """Return the page without what is after a position."""
        return self if seq is None else _Page([one for one in self.events if one.seq <= seq], self.end)

    def followed_by(self, page: _Page) -> _Page:
        """Return this page and the next one together."""
        return _Page(self.events + page.events, page.end)


class JetStreamEvents(EventStream):
    """The events of conversations in the stream EVENTS; opened by `open_events`.

    `epoch` names the incarnation of the stream (`delivery.broker.epochs`). It may change at run time; readers
    then start again from the beginning.
    """

    def __init__(
        self, nats: NatsConnection, hub: SubscriptionHub, *, epoch: str, has_expired: HasExpired | None = None
    ) -> None:
        self._epoch = epoch
        self._has_expired = has_expired
        self.usage = LogUsage()
        """How much of the event log's space is used."""
        self.confirmed_seq = 0
        """The highest seq that the broker has confirmed to this process in this epoch."""
        self.holes = LogHoles()
        """The events that readers found missing between others."""
        self._nats = nats
        self._hub = hub
        self._lasting: OrderedDict[str, int] = OrderedDict()
        self._appending: dict[str, asyncio.Future[None] | None] = {}
        """Conversations to which an event is being appended, with what waits for its end."""
        self._with_deltas: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Account and conversation of the deltas whose turn has not ended."""
        self._to_remove: dict[tuple[str, str], int] = {}
        """Account and conversation of the deltas whose turn has ended, with the seq of its end."""
        self._reading = FairGate(PoolSize(places=_READS_AT_ONCE))

    @property
    def epoch(self) -> str:
        """The incarnation of the stream."""
        return self._epoch

    def note_usage(self, usage: LogUsage, *, wanted_days: float) -> None:
        """Store how much of the log is used, and warn once if it is nearly full or holds too few days."""
        before, self.usage = self.usage, usage
        if before.fill < FILL_WARNING <= usage.fill:
            _log.warning(
                "event_log.nearly_filled",
                percent=round(usage.fill * 100),
                remedy="raise event_log_bytes: a full log deletes the oldest events of all conversations",
            )
        was_enough = before.days is None or before.days >= wanted_days
        if usage.days is not None and usage.days < wanted_days and was_enough:
            _log.warning(
                "event_log.retention_shortened",
                days=round(usage.days, 1),
                event_max_age_days=round(wanted_days, 1),
                remedy="raise event_log_bytes, or lower event_max_age",
            )

    def begin_epoch(self, epoch: str) -> None:
        """Change the epoch and report a gap to all readers: positions of the former epoch are invalid."""
        if epoch != self._epoch:
            self._epoch = epoch
            self.confirmed_seq = 0
            self._lasting.clear()
            self._to_remove.clear()
            self._hub.mark_gap()

    async def append(self, event: Event, *, account: str, expected: int) -> int:
        """Append a lasting event by compare-and-set on the conversation's last lasting seq."""
        try:
            return await self._append(event, account, previous=expected, expected=expected)
        except AppendConflict:
            tail = await self.tail(event.conversation, account=account)
        if tail is not None and tail.event_id == event.id:
            return tail.seq
        if tail is None and expected > 0:
            if self._has_expired is not None and not await self._has_expired(event.conversation):
                raise BrokerUnreachable(f"the events of {event.conversation} are published again first")
            return await self._append(event, account, previous=expected, expected=0)
        raise AppendConflict(f"expected seq {expected}, the tail is {tail.seq if tail else 0}")

    async def _append(self, event: Event, account: str, *, previous: int, expected: int) -> int:
        headers = encode_headers(event, previous=previous, epoch=self._epoch) | {EXPECTED: str(expected)}
        subject = lasting_subject(account, event.conversation)
        self._appending.setdefault(event.conversation, None)
        try:
            ack = await self._nats.publish(subject, event.encode(), headers)
            self._remember(event.conversation, ack.seq)
            self.confirmed_seq = max(self.confirmed_seq, ack.seq)
        finally:
            ended = self._appending.pop(event.conversation, None)
            if ended is not None:
                ended.set_result(None)
        if event.type in TURN_ENDS and (account, event.conversation) in self._with_deltas:
            del self._with_deltas[account, event.conversation]
            self._to_remove[account, event.conversation] = ack.seq
        return ack.seq

    async def publish_transient(self, event: Event, *, account: str) -> None:
        """Append a delta with the seq of the lasting event before it, so that readers can detect a gap."""
        if not self._nats.is_connected:
            return
        try:
            for _ in range(_TRANSIENT_TRIES):
                await self._wait_appended(event.conversation)
                previous = await self._last_lasting(account, event.conversation)
                if await self._publish_transient_after(event, account, previous):
                    return
        except DeliveryError:
            return

    async def _wait_appended(self, conversation: str) -> None:
        """Wait for the events that are being appended: a delta beside them would be refused.

        Raises BrokerUnreachable if they take too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TRANSIENT_SECONDS
        while conversation in self._appending:
            ended = self._appending[conversation]
            if ended is None:
                ended = self._appending[conversation] = loop.create_future()
            if not (await asyncio.wait({ended}, timeout=deadline - loop.time()))[0]:
                raise BrokerUnreachable(f"appending an event took more than {_TRANSIENT_SECONDS} s")

    async def _publish_transient_after(self, event: Event, account: str, previous: int) -> bool:
        headers = encode_headers(event, previous=previous, epoch=self._epoch) | {
            EXPECTED: str(previous),
            EXPECTED_SUBJECT: lasting_subject(account, event.conversation),
            TTL: f"{DELTA_SECONDS}s",
        }
        try:
            subject = transient_subject(account, event.conversation)
            await self._nats.publish(subject, event.encode(), headers, timeout=_TRANSIENT_SECONDS, tries=1)
        except AppendConflict:
            self._lasting.pop(event.conversation, None)
            return False
        self._with_deltas[account, event.conversation] = None
        if len(self._with_deltas) > _MAX_REMEMBERED:
            self._with_deltas.popitem(last=False)
        return True

    async def remove_deltas(self) -> None:
        """Delete the deltas of turns that have ended: nothing replays them, and they would fill the log.

        Raises BrokerUnreachable; the next call deletes the others.
        """
        while self._to_remove:
            (account, conversation), end = next(iter(self._to_remove.items()))
            request = {"filter": transient_subject(account, conversation), "seq": end}
            await self._nats.api_request(f"STREAM.PURGE.{EVENTS}", request)
            if self._to_remove.get((account, conversation)) == end:
                del self._to_remove[account, conversation]

    async def _last_lasting(self, account: str, conversation: str) -> int:
        known = self._lasting.get(conversation)
        if known is not None:
            return known
        tail = await self.tail(conversation, account=account)
        self._remember(conversation, tail.seq if tail else 0)
        return tail.seq if tail else 0

    def _remember(self, conversation: str, seq: int) -> None:
        self._lasting[conversation] = max(seq, self._lasting.get(conversation, 0))
        self._lasting.move_to_end(conversation)
        if len(self._lasting) > _MAX_REMEMBERED:
            self._lasting.popitem(last=False)

    async def tail(self, conversation: str, *, account: str) -> Tail | None:
        """Return the last stored lasting event, or None."""
        last = await self._last(lasting_subject(account, conversation))
        if last is None:
            return None
        return Tail(seq=last.seq, n=int(last.headers.get(NUMBER, "0")), event_id=last.event_id)

    async def bounds(self, conversation: str, *, account: str) -> StreamBounds:
        """Return the first and the last stored position; the last is the leader's, so it is never stale."""
        epoch = self.epoch
        lasting, transient = lasting_subject(account, conversation), transient_subject(account, conversation)
        firsts, last, newest = await asyncio.gather(
            self._read_page(lasting, 0, 1),
            self._last(lasting),
            self._last(transient),
        )
        delta = newest.to_event() if newest else None
        first = firsts.events[0] if firsts.events else delta
        return StreamBounds(
            epoch=epoch,
            first_seq=first.seq if first else 0,
            last_seq=max(last.seq if last else 0, delta.seq if delta else 0),
            first_previous=firsts.events[0].previous if firsts.events else 0,
            last_transient=delta,
        )

    async def _last(self, subject: str) -> StoredMessage | None:
        response = await self._nats.api_request(f"STREAM.MSG.GET.{EVENTS}", {"last_by_subj": subject})
        error = response.get("error")
        if error is None:
            return StoredMessage.parse(response["message"])
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise BrokerUnreachable(f"cannot read the last event: {error.get('description')}")

    async def read(
        self, conversation: str, *, account: str, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return stored events in stream order, by one batched direct get for each of the two subjects.

        For a wildcard the broker would search every block of the stream after the position. Deltas are read
        after the lasting events, so that none between these is missing.
        """
        subject = lasting_subject(account, conversation)
        lasting = await self._read_page(subject, after, limit)
        self.holes.note(subject, lasting.events, after=after)
        if not transient:
            return lasting.events
        deltas = await self._read_page(transient_subject(account, conversation), after, limit)
        deltas = deltas.up_to(lasting.end)
        known = lasting.events[-1].seq if lasting.events else after
        if deltas.events and deltas.events[-1].previous > known:  # what was appended since; or it has expired
            since = await self._read_page(subject, known, limit)
            lasting = lasting.followed_by(since.up_to(deltas.events[-1].previous))
        found = (*lasting.up_to(deltas.end).events, *deltas.events)
        return sorted(found, key=lambda event: event.seq)[:limit]

    async def _read_page(self, subject: str, after: int, limit: int) -> _Page:
        """Return the events of one subject after a position; the broker may return fewer than `limit`."""
        async with self._reading.hold():
            request = {"seq": after + 1, "batch": limit, "next_by_subj": subject}
            messages = await self._nats.direct_get(EVENTS, request)
        events = [decode_message(message) for message in messages]
        return _Page(events, end=events[-1].seq if messages and has_more(messages[-1]) else None)

    async def purge(self, conversation: str, *, account: str) -> None:
        """Purge the conversation's subjects; raises BrokerUnreachable unless they are empty afterwards."""
        response = await self._nats.api_request(
            f"STREAM.PURGE.{EVENTS}", {"filter": conversation_subjects(account, conversation)}
        )
        if "error" in response or await self._last(lasting_subject(account, conversation)) is not None:
            cause = response.get("error") or "another event was appended during the purge"
            raise BrokerUnreachable(f"the events of {conversation} were not deleted: {cause}")
        self._lasting.pop(conversation, None)

    def subscribe(
        self, conversation: str, *, account: str
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent | None]]:
        """Yield the events that are appended after entering, by the hub's one subscription."""
        return self._hub.subscribe(conversation, account=account)


@asynccontextmanager
async def open_events(
    nats: NatsConnection,
    *,
    epoch: str,
    has_expired: HasExpired | None = None,
    check_every: float = hubs.CHECK_EVERY,
    remove_every: float = REMOVE_EVERY,
) -> AsyncIterator[JetStreamEvents]:
    """Open the event stream on a connection; `ensure_streams` must have run before.

    The deltas of turns that have ended are deleted every `remove_every` seconds.
    """
    async with hubs.open_hub(nats, check_every=check_every) as hub:
        events = JetStreamEvents(nats, hub, epoch=epoch, has_expired=has_expired)
        stop = asyncio.Event()
        removing = asyncio.create_task(_remove_regularly(events, stop, remove_every))
        try:
            yield events
        finally:
            stop.set()
            await removing


async def _remove_regularly(events: JetStreamEvents, stop: asyncio.Event, every: float) -> None:
    while not stop.is_set():
        await wait_for_any(stop, timeout=every)
        with log_errors("deltas"):
            if not stop.is_set():
                await events.remove_deltas()
