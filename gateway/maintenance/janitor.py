"""The janitor: repeats wake-ups from SQL, so that a lost signal loses nothing, and forgets what is old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from delivery.broker.port import Queue
from delivery.database.clock import utc_now
from delivery.database.engine import Database, Unavailable
from delivery.deliveries import store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import QUEUES
from delivery.events import outbox
from delivery.events.relay import Relay
from gateway.store.accounts import audit_log, idempotency
from gateway.store.conversations import channel_state, conversations, pairings
from gateway.store.turns import turns

log = structlog.get_logger(__name__)

EVERY = 2.0
"""Seconds between looks; also the age from which something due is signalled again."""

FORGET_EVERY = 3600.0
KEPT = timedelta(days=30)
"""How long the keys of what was heard, the answers to repeated POSTs and ended deliveries are kept."""


AUDIT_KEPT = timedelta(days=365)
"""How long the audit log is kept."""


class Janitor:
    """Looks through SQL for what should be under way and wakes whoever looks after it."""

    def __init__(
        self,
        database: Database,
        relay: Relay,
        wake: Callable[[Queue, str], None],
        *,
        events_kept: timedelta = timedelta(days=7),
        every: float = EVERY,
    ) -> None:
        self._database = database
        self._relay = relay
        self._wake = wake
        self._events_kept = events_kept
        self._every = every

    async def run(self, stop: asyncio.Event) -> None:
        """Signal everything unfinished at once, then what is overdue, until stopped."""
        await self._guarded(self.look(timedelta(0)))
        forget_at = asyncio.get_running_loop().time() + FORGET_EVERY
        while not stop.is_set():
            try:
                async with asyncio.timeout(self._every):
                    await stop.wait()
            except TimeoutError:
                await self._guarded(self.look(timedelta(seconds=self._every)))
            if asyncio.get_running_loop().time() > forget_at:
                forget_at += FORGET_EVERY
                await self._guarded(self._forget())

    @staticmethod
    async def _guarded(round_: Awaitable[None]) -> None:
        try:
            await round_
        except Unavailable as error:
            log.warning("janitor.waits", error=str(error))
        except Exception:  # the janitor's outermost loop: it must look again
            log.exception("janitor.failed")

    async def look(self, age: timedelta) -> None:
        """Signal all that has been due for longer than `age`."""
        now = utc_now()
        async with self._database.read() as connection:
            backlogs = await outbox.backlogs(connection)
            busy = await turns.conversations_with_work(connection)
            due = await store.due_destinations(connection, now=now, before=now - age)
        for backlog in backlogs:
            self._relay.catch_up(backlog)
        for conversation in busy:
            self._wake(Queue.TURN, conversation)
        for kind, destination in due:
            self._wake(QUEUES[RouteKind(kind)], destination)

    async def _forget(self) -> None:
        now = utc_now()
        async with self._database.begin() as connection:
            await conversations.forget_inbox(connection, before=now - KEPT)
            await idempotency.forget(connection, before=now - KEPT)
            await audit_log.forget(connection, before=now - AUDIT_KEPT)
            await pairings.forget_expired(connection, before=now)
            await channel_state.forget_recent(connection, before=now - KEPT)
            await store.forget(connection, before=now - KEPT)
            await outbox.forget_events(connection, before=now - self._events_kept)
