"""Retries of a turn whose model or sandbox is unavailable: the schedule, its events, and the job's report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from delivery.events import outbox
from delivery.events.event import Event, EventType, rfc3339
from gateway.jobs.report import report_early, report_held_up_jobs
from gateway.store.turn_state import retry_after
from gateway.store.turns import turn_retries
from gateway.store.turns.turns import Turn
from gateway.turns.attempt import TurnAttempt
from gateway.turns.turn_end import shown_event

log = structlog.get_logger(__name__)

QUIET_SECONDS = 10.0
"""A chat hears of a retry only if the wait for it, or the wait so far, is at least this long."""


async def retry_later(attempt: TurnAttempt, error: str, *, period: float) -> bool:
    """Queue the turn for its next attempt and say so; returns False after `period` seconds of retries."""
    turn = attempt.turn
    async with attempt.begin("turn.release", runs_again=True) as tx:
        earlier = await outbox.list_of_type(tx.connection, turn.id, EventType.TURN_RETRYING)
        retries = int(earlier[-1].data["retry"]) if earlier else 0
        wait = retry_after(retries, period=period)
        if wait is None:
            return False
        moment = utc_now() + timedelta(seconds=wait)
        log.warning("turn.retry_scheduled", turn=turn.id, after=wait, error=error)
        await turn_retries.delay(tx.connection, turn.id, error=error, until=moment)
        event = _retrying_event(turn, earlier, error=error, wait=wait, at=moment)
        if not event.data["quiet"]:
            await _report_jobs(tx, attempt, error)
        tx.emit(event)
        tx.wake_at(WorkQueue.TURN, turn.conversation, moment, account=turn.account)
    return True


def _retrying_event(turn: Turn, earlier: Sequence[Event], *, error: str, wait: float, at: datetime) -> Event:
    waited = (utc_now() - turn.created_at).total_seconds()
    shown = shown_event(earlier)
    data: dict[str, object] = {
        "attempt": turn.attempt,
        "retry": int(earlier[-1].data["retry"]) + 1 if earlier else 1,
        "after": wait,
        "at": rfc3339(at),
        "error": error,
        "quiet": shown is None and wait < QUIET_SECONDS and waited < QUIET_SECONDS,
    }
    if shown is not None:
        data["replaces"] = shown
    return Event.now(EventType.TURN_RETRYING, turn.conversation, data, turn=turn.id)


async def _report_jobs(tx: Transaction, attempt: TurnAttempt, error: str) -> None:
    """Report the turn's job, and the jobs whose follow-up turns are queued behind it."""
    turn = attempt.turn
    if turn.trigger == "job":
        files = await attempt.list_files(tx.connection, turn)
        await report_early(tx, turn, files, state="retrying", error=error)
    else:
        await report_held_up_jobs(tx, turn.conversation, attempt.list_files)
