"""Retention: which rule limits each table, and the task that deletes old rows in short steps.

Each step is a transaction of its own that looks at a few hundred rows, with a pause after it, so that others
get the database in between. A pass that is interrupted or repeated deletes nothing that a rule keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from delivery.background import log_errors
from delivery.database.batched_deletes import BATCH_ROWS
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.database.lock_timeouts import run_with_lock_timeout
from delivery.deliveries import queries
from gateway.config.setting_types import RetentionSettings
from gateway.maintenance.work_share import WorkShare
from gateway.store.accounts import audit_log, budgets, usage
from gateway.store.conversations import room_messages
from gateway.store.conversations.room_messages import ROOM_MESSAGE_AGE
from gateway.store.turns import retention as turn_retention

INTERVAL_SECONDS = 3600.0
FIRST_SECONDS = 60.0
"""Seconds from the start to the first pass: a gateway that never runs for an hour deletes old rows too."""
STEP_PAUSE_SECONDS = 0.05
COUNTER_AGE = timedelta(days=40)

CONFIGURED = "an account's configuration: until it is deleted"
WITH_CONVERSATION = "with its conversation, which is kept until it is deleted"
WITH_TURN = "with its turn"
FIXED_SIZE = "a fixed number of rows"

RULES: Mapping[str, str] = {
    "accounts": CONFIGURED,
    "allowances": "one row for each bot and chat",
    "approvals": WITH_TURN,
    "attempts": "with its delivery",
    "audit": "retention.audit",
    "blobs": "while a file has it",
    "branches": WITH_CONVERSATION,
    "budget_counters": "40 days after its period ended",
    "budgets": CONFIGURED,
    "bundle_files": CONFIGURED,
    "channel_notes": "30 days for what was seen recently; one row for each room",
    "channel_secrets": "until the workspace uninstalls the app, or the channel is deleted",
    "conversations": "until it is deleted; without a name and a chat until its turns and messages are",
    "deliveries": "retention.deliveries; dead ones retention.turns",
    "destinations": "one row for each chat or endpoint",
    "drafts": "three days",
    "ended_sign_ins": "until a gateway revokes its tokens, within a minute",
    "endpoints": CONFIGURED,
    "epochs": FIXED_SIZE,
    "erasures": "until the events are purged",
    "files": "files.retention",
    "histories": "until a compaction replaces it, or its conversation is deleted",
    "identities": CONFIGURED,
    "inbox": "30 days",
    "inputs": WITH_TURN,
    "installations": FIXED_SIZE,
    "job_calls": "with its job",
    "job_progress": "with its job",
    "jobs": "with the turn that answered its result",
    "keys": f"{CONFIGURED}; those of people who signed in 30 days after they expired",
    "marks": FIXED_SIZE,
    "mcp_prompts": "until the server has others, or the agent is deleted",
    "mcp_sign_ins": "until the person signs out, or the server or agent is removed",
    "memories": "until they are deleted",
    "messages": "retention.messages",
    "outbox": "event_max_age after it was published",
    "pairings": "until it expires or is deleted",
    "persons": CONFIGURED,
    "records": CONFIGURED,
    "replies": "30 days",
    "room_messages": "a week; the newest 500 of each room",
    "routes": "with its turn, or with its conversation",
    "sandbox_leases": "a day after it expired",
    "sandboxes": "by the reaper, when its owner is gone or its lifetime is over",
    "schedules": "30 days after it ended",
    "steps": WITH_TURN,
    "streams": WITH_CONVERSATION,
    "triggers": WITH_CONVERSATION,
    "turns": "retention.turns",
    "usage": "retention.usage; the sums stay",
    "usage_totals": "one row for each agent",
}
"""How long the rows of each table are kept; a test compares the names with the schema."""

Step = Callable[[Connection, int], Awaitable[int | None]]
"""Delete old rows after a position in one transaction; return the next position, or None at the end."""


class RetentionTask:
    """Deletes rows that are older than the settings allow."""

    def __init__(
        self,
        database: Database,
        settings: RetentionSettings,
        *,
        share: WorkShare | None = None,
        now: Callable[[], datetime] = utc_now,
        pause: float = STEP_PAUSE_SECONDS,
        first: float = FIRST_SECONDS,
    ) -> None:
        self._database = database
        self._settings = settings
        self._share = share or WorkShare()
        self._now = now
        self._pause = pause
        self._first = first

    async def run(self, stop: asyncio.Event) -> None:
        """Delete old rows soon, and then every hour, until stopped."""
        wait = self._first
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await stop.wait()
            wait = INTERVAL_SECONDS
            if not stop.is_set():
                await self.run_once(stop)

    async def run_once(self, stop: asyncio.Event) -> None:
        """Delete the old rows of the tables that are this replica's part.

        A table that fails is tried again in the next pass.
        """
        for table, step in self._steps().items():
            if not self._share.has_table(table):
                continue
            with log_errors("retention", table=table):
                await self._run_steps(step, stop)

    async def _run_steps(self, step: Step, stop: asyncio.Event) -> None:
        position: int | None = 0
        while position is not None and not stop.is_set():
            position = await self._run_step(step, position)
            await asyncio.sleep(self._pause)

    async def _run_step(self, step: Step, position: int) -> int | None:
        return await run_with_lock_timeout(self._database, lambda connection: step(connection, position))

    def _steps(self) -> dict[str, Step]:
        settings, steps = self._settings, dict[str, Step]()
        turns, messages = self._moment(settings.turns), self._moment(settings.messages)
        if (done := self._moment(settings.deliveries)) is not None:
            steps["deliveries"] = partial(_delete_deliveries, done, turns)
        if turns is not None:
            steps["turns"] = lambda connection, after: turn_retention.delete_turns(
                connection, after=after, before=turns
            )
        if messages is not None:
            steps["messages"] = lambda connection, after: turn_retention.delete_messages(
                connection, after=after, before=messages
            )
        if turns is not None and messages is not None:
            steps["conversations"] = partial(_delete_conversations, min(turns, messages))
        if (spent := self._moment(settings.usage)) is not None:
            steps["usage"] = partial(_delete_usage, spent)
        if (logged := self._moment(settings.audit)) is not None:
            steps["audit"] = partial(_delete_audit, logged)
        steps["budget_counters"] = partial(_delete_counters, self._now() - COUNTER_AGE)
        steps["room_messages"] = partial(_delete_room_messages, self._now() - ROOM_MESSAGE_AGE)
        return steps

    def _moment(self, days: int) -> datetime | None:
        """Return the moment before which rows are old; None: never."""
        return self._now() - timedelta(days=days) if days else None


async def _delete_deliveries(
    done: datetime, failed: datetime | None, connection: Connection, after: int
) -> int | None:
    return await queries.delete_deliveries(connection, after=after, done_before=done, failed_before=failed)


async def _delete_conversations(before: datetime, connection: Connection, _after: int) -> int | None:
    return await turn_retention.delete_conversations(connection, before=before) or None


async def _delete_usage(before: datetime, connection: Connection, _after: int) -> int | None:
    return _next(await usage.delete_before(connection, before=before))


async def _delete_audit(before: datetime, connection: Connection, _after: int) -> int | None:
    return _next(await audit_log.delete_before(connection, before=before))


async def _delete_counters(before: datetime, connection: Connection, _after: int) -> int | None:
    return _next(await budgets.delete_ended_before(connection, before=before))


async def _delete_room_messages(before: datetime, connection: Connection, _after: int) -> int | None:
    return _next(await room_messages.delete_before(connection, before=before))


def _next(deleted: int) -> int | None:
    """Return any position if there may be more to delete."""
    return deleted if deleted == BATCH_ROWS else None
