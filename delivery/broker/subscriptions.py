"""One core subscription per followed conversation, shared by all its followers in this process.

The broker republishes every stored event once and does not repeat it. So after a reconnection every follower
gets a gap and reads again. The newest stored sequences are also compared regularly with those received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

import structlog
from nats.aio.msg import Msg

from delivery.background import log_errors
from delivery.broker.connection import NatsConnection
from delivery.broker.message_codec import SEQUENCE, SUBJECT, decode_message
from delivery.broker.stream_config import EVENTS, conversation_subjects, lasting_subject, transient_subject
from delivery.events.follower import Follower
from delivery.events.port import StoredEvent

_log = structlog.get_logger(__name__)

CHECK_EVERY = 30.0
_CONVERSATIONS_A_REQUEST = 400
"""Each conversation has two subjects; the broker refuses more than about a thousand in one request."""


@dataclass(slots=True)
class _Topic:
    """A followed conversation: its followers and the newest seq received."""

    account: str
    conversation: str
    followers: set[Follower] = field(default_factory=set)
    newest: int = 0
    unsubscribe: AsyncExitStack = field(default_factory=AsyncExitStack)

    def mark_gap(self) -> None:
        for follower in self.followers:
            follower.mark_gap()


class SubscriptionHub:
    """Passes live events to followers; opened by `open_hub`."""

    def __init__(self, nats: NatsConnection) -> None:
        self._nats = nats
        self._topics: dict[tuple[str, str], _Topic] = {}

    @asynccontextmanager
    async def subscribe(self, conversation: str, *, account: str) -> AsyncIterator[Follower]:
        """Yield a follower that receives the conversation's events from the moment of entering."""
        follower = Follower()
        topic = await self._join(account, conversation, follower)
        try:
            yield follower
        finally:
            await self._leave(topic, follower)

    async def _join(self, account: str, conversation: str, follower: Follower) -> _Topic:
        topic = self._topics.get((account, conversation))
        if topic is not None:
            topic.followers.add(follower)
            return topic
        topic = self._topics[account, conversation] = _Topic(account, conversation, {follower})
        try:
            await self._subscribe(topic)
        except BaseException:
            await self._leave(topic, follower)
            raise
        return topic

    async def _subscribe(self, topic: _Topic) -> None:
        async def receive(message: Msg) -> None:
            self._receive(topic, message)

        subject = f"live.{conversation_subjects(topic.account, topic.conversation)}"
        await topic.unsubscribe.enter_async_context(
            self._nats.subscribe(subject, receive, on_overflow=topic.mark_gap)
        )

    async def _leave(self, topic: _Topic, follower: Follower) -> None:
        topic.followers.discard(follower)
        key = topic.account, topic.conversation
        if not topic.followers and self._topics.get(key) is topic:
            del self._topics[key]
            await topic.unsubscribe.aclose()

    def _receive(self, topic: _Topic, message: Msg) -> None:
        try:
            event: StoredEvent = decode_message(message, live=True)
        except (KeyError, ValueError):
            _log.warning("message.ignored", subject=message.subject)
            return
        topic.newest = max(topic.newest, event.seq)
        for follower in topic.followers:
            follower.push(event)

    def mark_gap(self) -> None:
        """Report a gap to every follower, so that each reads the stream again."""
        for topic in self._topics.values():
            topic.mark_gap()

    async def check(self) -> None:
        """Compare the stored sequences with the received ones, and report a gap to followers that lag."""
        topics = list(self._topics.values())
        for start in range(0, len(topics), _CONVERSATIONS_A_REQUEST):
            await self._check_some(list(islice(topics, start, start + _CONVERSATIONS_A_REQUEST)))

    async def _check_some(self, topics: list[_Topic]) -> None:
        by_subject = {
            subject(topic.account, topic.conversation): (topic, topic.newest)
            for topic in topics
            for subject in (lasting_subject, transient_subject)
        }
        for message in await self._nats.direct_get(EVENTS, {"multi_last": list(by_subject)}):
            headers = message.headers or {}
            topic, newest = by_subject[headers[SUBJECT]]
            seq = int(headers[SEQUENCE])
            if newest < seq and topic.newest < seq:
                topic.newest = seq
                topic.mark_gap()

    async def _check_regularly(self, stop: asyncio.Event, every: float) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await stop.wait()
            with log_errors("subscriptions"):
                if not stop.is_set():
                    await self.check()


@asynccontextmanager
async def open_hub(
    nats: NatsConnection, *, check_every: float = CHECK_EVERY
) -> AsyncIterator[SubscriptionHub]:
    """Run a hub on a connection; `check_every` is the interval of `check` in seconds."""
    hub = SubscriptionHub(nats)
    stop = asyncio.Event()
    unwatch = nats.on_reconnect(hub.mark_gap)
    checking = asyncio.create_task(hub._check_regularly(stop, check_every))  # noqa: SLF001 - of its own class
    try:
        yield hub
    finally:
        unwatch()
        stop.set()
        await checking
