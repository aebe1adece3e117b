"""Firing: start what is due, once per due time, however many replicas try.

One transaction moves a schedule to its next time and queues the turn. The move succeeds for one replica only,
and a crash before the commit leaves the schedule due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from delivery.database.clock import ClockSteps, utc_now
from delivery.database.engine import Connection, DatabaseUnavailable, is_dangling_reference
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, rfc3339
from gateway.conversations.notices import post_notice
from gateway.conversations.submissions.conversation_lookup import ensure_agent_exists
from gateway.conversations.submissions.submission import QueueFull, Submission, UnknownTarget
from gateway.conversations.submissions.submissions import Submissions
from gateway.schedules.heartbeat import heartbeat_request
from gateway.schedules.recurrence import InvalidRecurrence
from gateway.schedules.schedules import recurrence_of
from gateway.store.conversations import conversations
from gateway.store.conversations import schedules as store
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns

log = structlog.get_logger(__name__)

POLL_SECONDS = 2.0
"""Seconds between looks at the database; each replica looks for itself."""

GRACE = timedelta(seconds=60)
"""A time that is later than this was missed, and the schedule's rule for missed times applies."""

BATCH = 100
RETRY_SECONDS = 10.0
"""Seconds until a conversation whose queue was full is tried again."""

SOURCE = "schedule"
"""The source of the keys of scheduled messages: the schedule and its due time."""

MISSED_NOTE = "its time passed while no gateway ran"
WAITING_NOTE = "its time was skipped, because the turn before had not begun"


class ScheduleDeleted(Exception):
    """A schedule was deleted with its conversation."""


_DELETED = "its conversation was deleted, and the schedule with it"


@contextmanager
def _translate_deletion() -> Iterator[None]:
    """Raise ScheduleDeleted if the conversation is deleted during the transaction in the block."""
    try:
        yield
    except Exception as error:
        if not is_dangling_reference(error):
            raise
        raise ScheduleDeleted(_DELETED) from error


class _AlreadyFired(Exception):
    """Another replica was first, or the schedule was changed in between; nothing is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One due time of a schedule: whether something starts, and the schedule afterwards."""

    starts: bool
    after: Schedule


def plan_occurrence(schedule: Schedule, due: datetime, now: datetime) -> Occurrence:
    """Return what happens at `now` for the time `due`, by the schedule's rule for missed times.

    A schedule whose following time cannot be told, as its time zone is gone, is paused.
    """
    recurrence = recurrence_of(schedule)
    made_up_for = due if schedule.missed is MissedRule.ALL else max(due, now)
    starts = now - due <= GRACE or schedule.missed is not MissedRule.SKIP
    try:
        following = recurrence.next_after(made_up_for, since=due)
        state = ScheduleState.ENDED if following is None else schedule.state
        note = "" if starts else MISSED_NOTE
    except InvalidRecurrence as error:
        following, state, note = None, ScheduleState.PAUSED, error.detail
    after = replace(
        schedule,
        next_at=following,
        state=state,
        last_at=due if starts else schedule.last_at,
        fired=schedule.fired + starts,
        note=note,
    )
    return Occurrence(starts=starts, after=after)


async def _is_waiting(connection: Connection, schedule: Schedule) -> bool:
    """Return whether a schedule's turn before waits in the queue, and so makes up for the times until then.

    So a turn that takes long, or waits for an approval, does not fill the queue of its conversation.
    """
    if schedule.at is not None or schedule.missed is MissedRule.ALL or schedule.last_turn is None:
        return False
    before = await turns.get(connection, schedule.account, schedule.last_turn)
    return before is not None and before.state is TurnState.QUEUED


class ScheduleFiring:
    """Starts the turns and reminders that are due."""

    def __init__(
        self,
        transactions: Transactions,
        submissions: Submissions,
        *,
        now: Callable[[], datetime] = utc_now,
        ticks: Callable[[], float] = time.monotonic,
        interval: float = POLL_SECONDS,
    ) -> None:
        self._transactions = transactions
        self._submissions = submissions
        self._now = now
        self._clock_steps = ClockSteps(now, ticks)
        self._interval = interval
        self._full: dict[str, float] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Fire what is due until stopped."""
        while not stop.is_set():
            wait = self._interval
            try:
                await self.follow_clock()
                wait = await self._fire_and_get_wait()
            except DatabaseUnavailable as error:
                log.warning("schedules.database_unavailable", error=error)
            except Exception:  # the outermost loop: the next pass must run
                log.exception("schedules.failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await stop.wait()

    async def _fire_and_get_wait(self) -> float:
        """Fire what is due and return the seconds until the next look."""
        if await self.fire_due() >= BATCH:
            return 0.0
        async with self._transactions.database.read() as connection:
            following = await store.next_due(connection)
        if following is None:
            return self._interval
        return min(max((following - self._now()).total_seconds(), 0.05), self._interval)

    async def follow_clock(self) -> None:
        """Bring the next times of schedules forward if the clock was set back since the last call.

        They were computed while it was fast: a schedule for each minute would not fire for as long as that.
        """
        back = self._clock_steps.measure()
        if back > GRACE:
            log.warning("schedules.clock_set_back", seconds=back.total_seconds())
            await self._bring_forward(self._now())
        self._clock_steps.mark_handled()

    async def _bring_forward(self, now: datetime) -> None:
        last = ""
        while True:
            async with self._transactions.database.read() as connection:
                later = await store.list_later(connection, now=now, after=last, limit=BATCH)
            if not later:
                return
            for schedule in later:
                with suppress(InvalidRecurrence):
                    await self._bring_one_forward(schedule, now)
            last = later[-1].id

    async def _bring_one_forward(self, schedule: Schedule, now: datetime) -> None:
        assert schedule.next_at is not None
        earliest = recurrence_of(schedule).earliest_after(now, due=schedule.next_at)
        if earliest is not None and earliest < schedule.next_at:
            async with self._transactions.database.begin() as connection:
                await store.update_schedule(connection, schedule, replace(schedule, next_at=earliest))

    async def fire_due(self) -> int:
        """Fire a batch of what is due; returns how many schedules were due."""
        now, loop_time = self._now(), asyncio.get_running_loop().time()
        self._full = {one: until for one, until in self._full.items() if until > loop_time}
        async with self._transactions.database.read() as connection:
            first = await store.next_due(connection)
            if first is None or first > now:
                return 0
            due = await store.list_due(connection, now=now, full=tuple(self._full), limit=BATCH)
        for schedule in due:
            try:
                await self._fire(schedule, now)
            except (_AlreadyFired, ScheduleDeleted):
                continue
            except UnknownTarget:
                await self._end_without_agent(schedule)
            except QueueFull:
                self._full[schedule.conversation] = loop_time + RETRY_SECONDS
                log.warning("schedule.queue_full", **_identity(schedule))
        return len(due)

    async def _fire(self, schedule: Schedule, now: datetime) -> None:
        due = schedule.next_at
        if due is None:
            return
        occurrence = plan_occurrence(schedule, due, now)
        with _translate_deletion():
            async with self._transactions.begin("schedule.fire") as tx:
                await self._start_due(tx, occurrence, schedule, due)

    async def _start_due(
        self, tx: Transaction, occurrence: Occurrence, schedule: Schedule, due: datetime
    ) -> None:
        if occurrence.starts and await _is_waiting(tx.connection, schedule):
            after = replace(
                occurrence.after, last_at=schedule.last_at, fired=schedule.fired, note=WAITING_NOTE
            )
            occurrence = Occurrence(starts=False, after=after)
        if not await store.update_schedule(tx.connection, schedule, occurrence.after):
            raise _AlreadyFired
        if occurrence.starts:
            await self._start(tx, occurrence.after, due)
        else:
            log.info("schedule.skipped", **_identity(schedule), due=rfc3339(due))

    async def _end_without_agent(self, schedule: Schedule) -> None:
        """End a schedule that was made or changed while its agent was deleted."""
        ended = replace(schedule, state=ScheduleState.ENDED, next_at=None, note=store.AGENT_DELETED_NOTE)
        async with self._transactions.database.begin() as connection:
            await store.update_schedule(connection, schedule, ended)
        log.warning("schedule.agent_deleted", **_identity(schedule))

    async def fire_now(self, schedule: Schedule) -> str | None:
        """Start what a schedule starts, besides its times; returns the turn, None for a reminder.

        Raises ScheduleDeleted, UnknownTarget if its agent was deleted, QueueFull, DatabaseUnavailable.
        """
        with _translate_deletion():
            async with self._transactions.begin("schedule.fire") as tx:
                return await self._start(tx, schedule, self._now())

    async def _start(self, tx: Transaction, schedule: Schedule, due: datetime) -> str | None:
        conversation = await conversations.get(tx.connection, schedule.account, schedule.conversation)
        if conversation is None:
            raise ScheduleDeleted(_DELETED)
        fired = {"schedule": schedule.id, "due": rfc3339(due)}
        if schedule.kind is ScheduleKind.REMINDER:
            tx.emit(Event.now(EventType.SCHEDULE_FIRED, conversation.id, fired))
            await post_notice(tx, conversation.id, f"Reminder: {schedule.text}")
            return None
        await ensure_agent_exists(tx.connection, conversation)
        submitted = await self._submissions.enqueue(
            tx,
            conversation,
            Submission(
                account=schedule.account,
                text=schedule.text,
                asker=schedule.created_by,
                source=SOURCE,
                key=f"{schedule.id} {due.isoformat()}",
                own_turn=True,
                request=heartbeat_request() if schedule.heartbeat else None,
                notify=True,
            ),
        )
        tx.emit(Event.now(EventType.SCHEDULE_FIRED, conversation.id, fired, turn=submitted.turn))
        await store.set_last_turn(tx.connection, schedule.id, submitted.turn)
        return submitted.turn


def _identity(schedule: Schedule) -> Mapping[str, str]:
    """Return the fields that identify a schedule in log lines."""
    return {"account": schedule.account, "conversation": schedule.conversation, "schedule": schedule.id}
