"""The stream on JetStream: appends by compare-and-set, reads by direct get, no consumer per reader."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from delivery.broker import subscriptions as hubs
from delivery.broker.connection import Link
from delivery.broker.message_codec import (
    EXPECTED,
    EXPECTED_SUBJECT,
    MESSAGE_ID,
    NUMBER,
    TTL,
    Stored,
    headers_of,
    recorded_from,
)
from delivery.broker.stream_config import EVENTS, lasting_subject, token, transient_subject
from delivery.broker.subscriptions import Hub
from delivery.errors import Conflict, DeliveryError, Unreachable
from delivery.events.event import Event
from delivery.events.port import Extent, Recorded, Stream, Tail

DELTA_SECONDS = 3600
_NO_MESSAGE = 10037
_REMEMBERED = 10_000
_WHISPER_TRIES = 3
_READS_AT_ONCE = 32


class JetStream(Stream):
    """Events of conversations in the stream EVENTS; made by `opened`.

    `epoch` names the incarnation of the stream (see `delivery.broker.epochs`) and may be changed while running:
    readers then start over.
    """

    def __init__(self, link: Link, hub: Hub, *, epoch: str) -> None:
        self.epoch = epoch
        self.fill = 0.0
        """How much of its space the event log takes, as `delivery.broker.epochs.watch` saw it last."""
        self._link = link
        self._hub = hub
        self._lasting: OrderedDict[str, int] = OrderedDict()
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    def begin_epoch(self, epoch: str) -> None:
        """Tell all readers that positions of the former epoch mean nothing any more."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._lasting.clear()
            self._hub.doubt_all()

    async def append(self, event: Event, *, expected: int) -> int:
        """Append by compare-and-set on the conversation's last lasting seq."""
        try:
            return await self._append(event, previous=expected, expected=expected)
        except Conflict:
            tail = await self.tail(event.conversation)
        if tail is not None and tail.event_id == event.id:
            return tail.seq
        if tail is None and expected > 0:  # all that went before has been trimmed
            return await self._append(event, previous=expected, expected=0)
        raise Conflict(f"expected seq {expected}, the tail is {tail.seq if tail else 0}")

    async def _append(self, event: Event, *, previous: int, expected: int) -> int:
        headers = headers_of(event, previous=previous) | {EXPECTED: str(expected)}
        ack = await self._link.publish(lasting_subject(event.conversation), event.dump(), headers)
        self._remember(event.conversation, ack.seq)
        return ack.seq

    async def whisper(self, event: Event) -> None:
        """Append a delta after the lasting event it follows, so that readers see that they miss none."""
        if not self._link.is_up:
            return
        try:
            for _ in range(_WHISPER_TRIES):
                if await self._whisper_after(event, await self._last_lasting(event.conversation)):
                    return
        except DeliveryError:
            return

    async def _whisper_after(self, event: Event, previous: int) -> bool:
        headers = headers_of(event, previous=previous) | {
            EXPECTED: str(previous),
            EXPECTED_SUBJECT: lasting_subject(event.conversation),
            TTL: f"{DELTA_SECONDS}s",
        }
        try:
            await self._link.publish(
                transient_subject(event.conversation), event.dump(), headers, timeout=1, tries=1
            )
        except Conflict:
            self._lasting.pop(event.conversation, None)
            return False
        return True

    async def _last_lasting(self, conversation: str) -> int:
        known = self._lasting.get(conversation)
        if known is not None:
            return known
        tail = await self.tail(conversation)
        self._remember(conversation, tail.seq if tail else 0)
        return tail.seq if tail else 0

    def _remember(self, conversation: str, seq: int) -> None:
        self._lasting[conversation] = max(seq, self._lasting.get(conversation, 0))
        self._lasting.move_to_end(conversation)
        if len(self._lasting) > _REMEMBERED:
            self._lasting.popitem(last=False)

    async def tail(self, conversation: str) -> Tail | None:
        """Return the last lasting event kept."""
        last = await self._last(lasting_subject(conversation))
        if last is None:
            return None
        number, event_id = last.headers.get(NUMBER, "0"), last.headers.get(MESSAGE_ID, "")
        return Tail(seq=last.seq, n=int(number), event_id=event_id)

    async def extent(self, conversation: str) -> Extent:
        """Ask for the first and the last kept event; the last of the leader, so that it is never stale."""
        epoch = self.epoch
        lasting, transient = lasting_subject(conversation), transient_subject(conversation)
        firsts, last, newest = await asyncio.gather(
            self._fetch({"seq": 1, "batch": 1, "next_by_subj": lasting}),
            self._last(lasting),
            self._last(transient),
        )
        draft = newest.recorded() if newest else None
        first = firsts[0] if firsts else draft
        return Extent(
            epoch=epoch,
            first_seq=first.seq if first else 0,
            last_seq=max(last.seq if last else 0, draft.seq if draft else 0),
            first_previous=firsts[0].previous if firsts else 0,
            draft=draft,
        )

    async def _last(self, subject: str) -> Stored | None:
        answer = await self._link.call(f"STREAM.MSG.GET.{EVENTS}", {"last_by_subj": subject})
        error = answer.get("error")
        if error is None:
            return Stored.of(answer["message"])
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise Unreachable(f"cannot read the last event: {error.get('description')}")

    async def read(
        self, conversation: str, *, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[Recorded]:
        """Read by one batched direct get, lasting and transient events in stream order."""
        subject = f"ev.{token(conversation)}.{'*' if transient else 'e'}"
        return await self._fetch({"seq": after + 1, "batch": limit, "next_by_subj": subject})

    async def _fetch(self, request: dict[str, object]) -> list[Recorded]:
        async with self._reading:
            return [recorded_from(message) for message in await self._link.fetch(EVENTS, request)]

    async def forget(self, conversation: str) -> None:
        """Purge the conversation's subjects, and look whether they are empty."""
        answer = await self._link.call(f"STREAM.PURGE.{EVENTS}", {"filter": f"ev.{token(conversation)}.*"})
        if "error" in answer or await self._last(lasting_subject(conversation)) is not None:
            raise Unreachable(f"the events were not removed: {answer.get('error') or 'more came meanwhile'}")
        self._lasting.pop(conversation, None)

    def follow(self, conversation: str) -> AbstractAsyncContextManager[AsyncIterator[Recorded | None]]:
        """Follow by the hub's one subscription for this conversation."""
        return self._hub.follow(conversation)


@asynccontextmanager
async def opened(
    link: Link, *, epoch: str, check_every: float = hubs.CHECK_EVERY
) -> AsyncIterator[JetStream]:
    """Run the stream on a link whose layout has been ensured."""
    async with hubs.opened(link, check_every=check_every) as hub:
        yield JetStream(link, hub, epoch=epoch)
