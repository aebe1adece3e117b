"""Nothing waits for a time that was computed while the clock was fast."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Float, Integer, LargeBinary, Table, insert, select, update
from sqlalchemy.types import JSON

from delivery.database.clock import ClockSteps, utc_now
from delivery.database.engine import Database, metadata
from delivery.database.tables import UtcDateTime
from delivery.database.tables import destinations as destinations_table
from delivery.deliveries import destinations
from gateway.store import clock_corrections
from gateway.store.clock_corrections import CORRECTIONS, Correction
from turn_worker import TurnWorkerHarness, open_turn_worker

DAY = timedelta(days=1)
OPEN_STATES = {"turns": "queued", "deliveries": "retrying", "approvals": "pending", "jobs": "running"}
PAST = frozenset(
    {
        "active_at",
        "at",
        "claimed_at",
        "created_at",
        "dead_at",
        "decided_at",
        "disabled_at",
        "ended_at",
        "event_time",
        "failed_at",
        "finished_at",
        "handover_at",
        "last_at",
        "paired_at",
        "revoked_at",
        "sent_at",
        "spawned_at",
        "started_at",
        "stop_requested_at",
        "touched_at",
        "updated_at",
    }
)
"""Times that records show, by which they are ordered or deleted: nothing waits until they have passed."""

BOUNDED = {
    "budget_counters.ends_at": "the key of the row names its period",
    "destinations.held_until": "later than LONGEST_PAUSE: read as ended",
    "drafts.busy_until": "later than a write may take: read as ended",
    "endpoints.failing_since": "an endpoint that fails is disabled later, and none waits for it",
    "endpoints.previous_until": "an earlier secret signs longer",
    "files.expires_at": "a file is kept longer, at most as long as all files",
    "keys.expires_at": "a key ends at the time that its owner was told",
    "mcp_sign_ins.claimed_until": "later than a claim may last: read as ended",
    "pairings.expires_at": "later than a code may last: read as ended",
    "persons.code_expires_at": "later than a code may last: read as ended",
    "sandbox_leases.expires_at": "the lock of a dead replica is taken by its presence",
    "schedules.next_at": "computed again when the clock was set back",
}
"""Other times of the future, and why they need no correction."""


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """An account with an agent and a conversation."""
    return await open_turn_worker(database, tmp_path)


def test_every_time_is_corrected_or_needs_no_correction() -> None:
    """A new column that holds a time of the future is corrected, or is bounded where it is read."""
    corrected = {f"{one.column.table.name}.{one.column.name}" for one in CORRECTIONS}
    times = {
        f"{table.name}.{column.name}": column.name
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, UtcDateTime)
    }
    assert {name for name, column in times.items() if column not in PAST} - corrected == set(BOUNDED)


def _any_value(column: Column[Any], now: datetime, harness: TurnWorkerHarness) -> Any:
    if column.name in ("account", "conversation", "agent"):
        return {
            "account": harness.agent.account,
            "conversation": harness.conversation,
            "agent": harness.agent.id,
        }[column.name]
    kinds: list[tuple[Any, Any]] = [
        (UtcDateTime, now),
        (LargeBinary, b""),
        (JSON, {}),
        (Boolean, False),
        ((Integer, Float), 1),
    ]
    return next((value for kind, value in kinds if isinstance(column.type, kind)), "x")


async def _row(table: Table, harness: TurnWorkerHarness, at: datetime) -> dict[str, Any]:
    row = {
        column.name: _any_value(column, at, harness)
        for column in table.columns
        if not column.nullable and column.default is None and column.name != "position"
    }
    if "state" in table.c:
        row["state"] = OPEN_STATES[table.name]
    if table.name == "approvals":
        row["turn"] = (await harness.add_turn()).id
    return row


def named(one: Correction) -> str:
    """Return the name of a correction's test."""
    return f"{one.column.table.name}.{one.column.name}"


@pytest.mark.parametrize("one", CORRECTIONS, ids=named)
async def test_a_time_of_a_fast_clock_is_corrected(harness: TurnWorkerHarness, one: Correction) -> None:
    """What it delays is due, and a time that a clock which is right has computed stays."""
    now, table = utc_now(), one.column.table
    assert isinstance(table, Table)
    row = await _row(table, harness, now + DAY)
    async with harness.database.begin() as connection:
        await connection.execute(insert(table).values({**row, one.column.name: now + DAY + DAY / 24}))
        assert await clock_corrections.correct(connection, now=now)
        found = (await connection.execute(select(one.column))).scalars().all()
        assert found[-1] == (None if one.clears else now)
        right = now + min(one.most or DAY / 48, DAY / 48)
        written = {one.written.name: now} if one.written is not None else {}
        await connection.execute(update(table).values({one.column.name: right, **written}))
        await clock_corrections.correct(connection, now=now)
        assert (await connection.execute(select(one.column))).scalars().all()[-1] == right


async def test_a_pause_of_a_fast_clock_has_ended(database: Database) -> None:
    """A chat whose rate limit was stored with a fast clock gets messages, and a new limit holds."""
    now = utc_now()
    async with database.begin() as connection:
        await destinations.pause(connection, "chat", account="acc", until=now + DAY)
        state = await destinations.get_state(connection, "chat")
        assert state.remaining_pause(now) == 0
        await destinations.pause(connection, "chat", account="acc", until=now + timedelta(minutes=2))
        state = await destinations.get_state(connection, "chat")
        assert state.remaining_pause(now) == 120
        await destinations.pause(connection, "chat", account="acc", until=now + timedelta(minutes=1))
        stored = (await connection.execute(select(destinations_table.c.held_until))).scalar_one()
    assert stored == now + timedelta(minutes=2)


def test_steps_of_a_clock_are_measured() -> None:
    """Time that passes is no step, and a step is measured until it is handled."""
    clock, ticks = [utc_now()], [0.0]
    steps = ClockSteps(lambda: clock[0], lambda: ticks[0])
    clock[0], ticks[0] = clock[0] + timedelta(hours=1), 3600.0
    assert steps.measure() == timedelta(0)
    clock[0] -= DAY
    assert steps.measure() == DAY
    assert steps.measure() == DAY
    steps.mark_handled()
    assert steps.measure() == timedelta(0)
