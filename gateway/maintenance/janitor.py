"""The janitor: repeats wake-ups for unfinished work in SQL, and deletes old rows.

It also gives back the budget that model requests of dead processes had reserved, cancels turns that their
clients have left, and corrects times that a fast clock has written. Replicas share this work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import structlog

from delivery.broker.port import SendWakeUp, WorkQueue
from delivery.database.batched_deletes import BATCH_ROWS
from delivery.database.clock import ClockSteps, utc_now
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.deliveries import store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import QUEUES
from delivery.events import outbox
from delivery.events.relay import Relay
from gateway.accounts.reservations import BudgetReservations
from gateway.conversations.questions import CLIENT_TOOL
from gateway.maintenance.work_share import WorkShare, is_in
from gateway.store import clock_corrections
from gateway.store.accounts import idempotency, sign_ins
from gateway.store.conversations import channel_state, conversations, pairings, schedules
from gateway.store.turns import approvals, turn_queue, turns

log = structlog.get_logger(__name__)

INTERVAL = 2.0
"""Seconds between two passes; also the age from which due work gets another wake-up."""

DELETE_INTERVAL = 3600.0
RETENTION = timedelta(days=30)
"""How long event keys and responses to repeated POSTs are kept; `RetentionTask` deletes the rest."""


class Janitor:
    """Publishes wake-ups for unfinished turns and deliveries, and deletes rows past their retention.

    A turn waits for the results of its client's tools for `call_days` (0: always). Clients that make
    structured output from the arguments of a call never return any.
    """

    def __init__(
        self,
        database: Database,
        relay: Relay,
        wake: SendWakeUp,
        *,
        share: WorkShare | None = None,
        event_retention: timedelta = timedelta(days=7),
        call_days: int = 7,
        interval: float = INTERVAL,
    ) -> None:
        self._database = database
        self._reservations = BudgetReservations(database)
        self._relay = relay
        self._wake = wake
        self._share = share or WorkShare()
        self._event_retention = event_retention
        self._call_days = call_days
        self._interval = interval
        self._clock_steps = ClockSteps(utc_now)

    async def run(self, stop: asyncio.Event) -> None:
        """Wake all unfinished work at once, then overdue work every `interval` seconds, until stopped."""
        await self._run_safely(self.correct_times())
        await self._run_safely(self.run_once(timedelta(0)))
        delete_at = asyncio.get_running_loop().time() + DELETE_INTERVAL
        while not stop.is_set():
            try:
                async with asyncio.timeout(self._interval):
                    await stop.wait()
            except TimeoutError:
                await self._run_safely(self.follow_clock())
                await self._run_safely(self.run_once(timedelta(seconds=self._interval)))
            if asyncio.get_running_loop().time() > delete_at:
                delete_at += DELETE_INTERVAL
                await self._run_safely(self.correct_times())
                await self._run_safely(self.delete_old())
                await self._run_safely(self.cancel_abandoned())

    @staticmethod
    async def _run_safely(step: Awaitable[None]) -> None:
        try:
            await step
        except DatabaseUnavailable as error:
            log.warning("janitor.database_unavailable", error=error)
        except Exception:  # the janitor's outermost loop: the next pass must run
            log.exception("janitor.failed")

    async def run_once(self, min_age: timedelta) -> None:
        """Wake this replica's part of the work that has been due for longer than `min_age`.

        Also give back expired reservations.
        """
        now, shards = utc_now(), self._share.take_shards()
        async with self._database.read() as connection:
            backlogs = await outbox.list_backlogs(connection)
            busy = await turn_queue.list_conversations_with_work(connection)
            due = await store.due_destinations(connection, now=now, before=now - min_age)
        for backlog in backlogs:
            if is_in(shards, backlog.account, backlog.conversation):
                self._relay.catch_up(backlog)
        for conversation, account in busy:
            if is_in(shards, account, conversation):
                self._wake(WorkQueue.TURN, conversation, account=account)
        for kind, destination, account in due:
            if is_in(shards, account, destination):
                self._wake(QUEUES[RouteKind(kind)], destination, account=account)
        if self._share.has_table("budget_counters"):
            await self._reservations.release_expired()

    async def follow_clock(self) -> None:
        """Correct stored times if the clock was set back since the last call."""
        back = self._clock_steps.measure()
        if back > clock_corrections.TOLERANCE:
            log.warning("clock.set_back", seconds=round(back.total_seconds()))
            await self.correct_times()
        self._clock_steps.mark_handled()

    async def correct_times(self) -> None:
        """Make due what would wait until a time that a fast clock has computed."""
        async with self._database.begin() as connection:
            count = await clock_corrections.correct(connection, now=utc_now())
        if count:
            log.warning("clock.times_corrected", count=count)

    async def cancel_abandoned(self) -> None:
        """Cancel turns that have waited too long for the results of their client's tools.

        The rest of many is for the next pass, and so are those whose wake-up was lost.
        """
        if not self._call_days or not self._share.has_table("approvals"):
            return
        before = utc_now() - timedelta(days=self._call_days)
        reason = f"no results of its client's tools in {self._call_days} days"
        async with self._database.begin() as connection:
            found = await approvals.list_turns_pending_only(
                connection, CLIENT_TOOL, before=before, limit=BATCH_ROWS
            )
            for turn, _conversation, _account in found:
                await turns.request_cancel(connection, turn, reason=reason)
        for _turn, conversation, account in found:
            self._wake(WorkQueue.TURN, conversation, account=account)

    async def delete_old(self) -> None:
        """Delete rows that are past their retention, in the tables that are this replica's part."""
        now = utc_now()
        deletions: dict[str, Callable[[Connection], Awaitable[int | None]]] = {
            "inbox": partial(conversations.delete_inbox_before, before=now - RETENTION),
            "replies": partial(idempotency.delete_before, before=now - RETENTION),
            "pairings": partial(pairings.delete_expired, before=now),
            "keys": partial(sign_ins.delete_expired, before=now - RETENTION),
            "schedules": partial(schedules.delete_ended_before, before=now - RETENTION),
            "channel_notes": partial(channel_state.delete_recent_before, before=now - RETENTION),
            "outbox": partial(outbox.delete_published, before=now - self._event_retention),
        }
        for table, delete in deletions.items():
            deleted: int | None = BATCH_ROWS if self._share.has_table(table) else None
            while deleted == BATCH_ROWS:
                async with self._database.begin() as connection:
                    deleted = await delete(connection)
