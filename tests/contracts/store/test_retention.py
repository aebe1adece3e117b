"""Old rows are deleted in short steps; what is unfinished, undelivered or read by an agent stays."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select

from delivery.database import tables as delivery_tables
from delivery.database.engine import Database, metadata
from delivery.deliveries.queries import BATCH_ROWS
from gateway.config.setting_types import RetentionSettings
from gateway.maintenance.retention import FIRST_SECONDS, INTERVAL_SECONDS, RULES, RetentionTask
from gateway.store import history_tables, sandbox_tables, tables
from gateway.store.conversations import histories
from gateway.store.schedule_tables import schedules
from gateway.store.turns import retention
from ingress_harness import IngressHarness, open_ingress_harness

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=100)
DAYS_90 = RetentionSettings(turns=90, messages=90, deliveries=30, usage=90, audit=90)


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


def test_every_table_has_a_rule() -> None:
    """A new table fails here until it has a rule for how long its rows are kept."""
    assert set(RULES) == set(metadata.tables)
    named = {rule for rule in RULES.values() if rule.startswith("retention.")}
    settings = {rule.partition(";")[0].removeprefix("retention.") for rule in named}
    cancels = {"client_calls"}
    assert settings | cancels == set(RetentionSettings.model_fields)


async def test_old_work_goes_and_needed_work_stays(harness: IngressHarness) -> None:
    """A turn that waits, has a running job or an open delivery stays; so does the agent's history."""
    kept = {"waiting", "has_job", "undelivered", "unpublished", "young"}
    conversation = (await harness.send_message("first"), await harness.get_conversation())[1].id
    await _fill(harness, conversation)
    task = RetentionTask(harness.database, DAYS_90, now=lambda: NOW, pause=0)
    await task.run_once(asyncio.Event())
    assert await _column(harness, tables.turns, "id") >= kept
    assert not await _column(harness, tables.turns, "id") & {"done", "answered"}
    assert await _column(harness, tables.steps, "turn") == {"waiting"}
    assert await _column(harness, tables.approvals, "turn") == {"waiting"}
    assert await _column(harness, tables.jobs, "id") == {"job_running"}
    assert await _column(harness, tables.messages, "id") >= {"msg_waiting", "msg_young"}
    assert "msg_done" not in await _column(harness, tables.messages, "id")
    assert await _column(harness, delivery_tables.deliveries, "id") == {"dlv_undelivered"}
    assert await _column(harness, sandbox_tables.usage, "id") == {"use_young"}
    assert await _column(harness, history_tables.histories, "turn") == {"done"}
    before = {table.name: await _count(harness, table) for table in metadata.sorted_tables}
    await task.run_once(asyncio.Event())
    assert {table.name: await _count(harness, table) for table in metadata.sorted_tables} == before


async def test_nothing_is_deleted_when_a_setting_is_zero(harness: IngressHarness) -> None:
    """An operator can keep everything."""
    conversation = (await harness.send_message("first"), await harness.get_conversation())[1].id
    await _fill(harness, conversation)
    before = {table.name: await _count(harness, table) for table in metadata.sorted_tables}
    forever = RetentionSettings(turns=0, messages=0, deliveries=0, usage=0, audit=0)
    await RetentionTask(harness.database, forever, now=lambda: NOW, pause=0).run_once(asyncio.Event())
    assert {table.name: await _count(harness, table) for table in metadata.sorted_tables} == before


async def test_the_first_pass_does_not_wait_for_an_hour(harness: IngressHarness) -> None:
    """A gateway that is restarted more often deletes old rows too."""
    began, stop = asyncio.Event(), asyncio.Event()

    def read_clock() -> datetime:
        began.set()
        return NOW

    task = RetentionTask(harness.database, DAYS_90, now=read_clock, pause=0, first=0)
    running = asyncio.create_task(task.run(stop))
    async with asyncio.timeout(30):
        await began.wait()
    stop.set()
    await running
    assert FIRST_SECONDS < INTERVAL_SECONDS


async def test_a_step_is_short(harness: IngressHarness) -> None:
    """One transaction looks at a bounded number of rows, so that others get the database in between."""
    await harness.send_message("first")
    conversation = (await harness.get_conversation()).id
    async with harness.database.begin() as connection:
        await connection.execute(
            insert(tables.messages),
            [
                _message(harness, f"msg_{number}", conversation, None, OLD)
                for number in range(BATCH_ROWS + 10)
            ],
        )
        position = await retention.delete_messages(connection, after=0, before=NOW - timedelta(days=90))
    assert position is not None
    assert await _count(harness, tables.messages) == 1 + 10 + 1, "the first message is young"
    await RetentionTask(harness.database, DAYS_90, now=lambda: NOW, pause=0).run_once(asyncio.Event())
    assert not await _column(harness, tables.messages, "created_at") & {OLD}


async def test_unused_conversations_without_a_name_are_deleted(harness: IngressHarness) -> None:
    """Those without a name, a chat, turns and messages, with what agents remember; others stay."""
    await harness.send_message("in a chat")
    others: dict[str, dict[str, Any]]
    others = {"named": {"name": "kept"}, "stored": {"client_state": {}}, "young": {"created_at": NOW}}
    used = {"said": tables.messages, "asked": tables.turns, "scheduled": schedules}
    async with harness.database.begin() as connection:
        for id_ in ("gone", *others, *used):
            row: dict[str, Any] = {
                "id": id_,
                "account": harness.account,
                "agent": "agt",
                "fence": 0,
                "created_at": OLD,
            }
            await connection.execute(insert(tables.conversations), row | others.get(id_, {}))
            await histories.append(
                connection, account=harness.account, conversation=id_, turn=None, body=b"x"
            )
        said = _message(harness, "msg_1", "said", None, NOW)
        await connection.execute(insert(tables.messages), said)
        await connection.execute(insert(tables.turns), _turn(harness, "asked", "trn_1", "waiting", None))
        await connection.execute(insert(schedules), _schedule(harness, "scheduled"))
    chats = await _column(harness, tables.conversations, "id") - {"gone", *others, *used}
    await RetentionTask(harness.database, DAYS_90, now=lambda: NOW, pause=0).run_once(asyncio.Event())
    kept = {*others, *used}
    assert await _column(harness, tables.conversations, "id") == chats | kept
    assert await _column(harness, history_tables.histories, "conversation") == kept
    assert await _column(harness, tables.erasures, "conversation") == {"gone"}


async def _fill(harness: IngressHarness, conversation: str) -> None:
    """Insert an old turn of each kind, and a young one, with all that belongs to them."""
    turn_rows = [
        _turn(harness, conversation, "done", "completed", OLD),
        _turn(harness, conversation, "answered", "completed", OLD, job="job_done"),
        _turn(harness, conversation, "waiting", "waiting", None),
        _turn(harness, conversation, "has_job", "completed", OLD),
        _turn(harness, conversation, "undelivered", "completed", OLD),
        _turn(harness, conversation, "unpublished", "completed", OLD),
        _turn(harness, conversation, "young", "completed", NOW),
    ]
    async with harness.database.begin() as connection:
        await connection.execute(insert(tables.turns), turn_rows)
        await histories.append(
            connection,
            account=turn_rows[0]["account"],
            conversation=conversation,
            turn="done",
            body=b"what the agent reads",
        )
        await connection.execute(insert(tables.steps), [_step(harness, turn) for turn in ("done", "waiting")])
        await connection.execute(
            insert(tables.approvals), [_approval(harness, conversation, turn) for turn in ("done", "waiting")]
        )
        await connection.execute(
            insert(tables.jobs),
            [
                _job(harness, conversation, "job_done", "done", "completed"),
                _job(harness, conversation, "job_running", "has_job", "running"),
            ],
        )
        await connection.execute(
            insert(tables.messages),
            [
                _message(harness, "msg_done", conversation, "done", OLD),
                _message(harness, "msg_waiting", conversation, "waiting", OLD),
                _message(harness, "msg_young", conversation, "young", NOW),
            ],
        )
        await connection.execute(
            insert(delivery_tables.deliveries),
            [
                _delivery(harness, conversation, "done", "delivered"),
                _delivery(harness, conversation, "undelivered", "pending"),
            ],
        )
        await connection.execute(
            insert(delivery_tables.outbox).values(
                event_id="unpublished",
                conversation=conversation,
                account=turn_rows[0]["account"],
                n=1_000_000,
                type="turn.completed",
                turn="unpublished",
                body=b"{}",
                created_at=OLD,
            )
        )
        await connection.execute(
            insert(sandbox_tables.usage), [_usage(harness, "use_old", OLD), _usage(harness, "use_young", NOW)]
        )


def _turn(
    harness: IngressHarness,
    conversation: str,
    name: str,
    state: str,
    finished: datetime | None,
    job: str | None = None,
) -> dict[str, Any]:
    return {
        "id": name,
        "account": harness.account,
        "conversation": conversation,
        "agent": "agt",
        "trigger": "job" if job else "message",
        "job": job,
        "asker": "",
        "input": "work",
        "state": state,
        "attempt": 1,
        "crashes": 0,
        "cancel": False,
        "notify": False,
        "created_at": finished or OLD,
        "finished_at": finished,
    }


def _schedule(harness: IngressHarness, conversation: str) -> dict[str, Any]:
    return {
        "id": "sch_1",
        "account": harness.account,
        "conversation": conversation,
        "kind": "turn",
        "text": "work",
        "timezone": "UTC",
        "missed": "once",
        "state": "paused",
        "created_by": "",
        "created_at": OLD,
    }


def _step(harness: IngressHarness, turn: str) -> dict[str, Any]:
    return {
        "turn": turn,
        "account": harness.account,
        "step_key": "one",
        "position": 0,
        "tool": "bash",
        "args": {},
        "state": "done",
        "started_at": OLD,
    }


def _approval(harness: IngressHarness, conversation: str, turn: str) -> dict[str, Any]:
    return {
        "id": f"apv_{turn}",
        "account": harness.account,
        "conversation": conversation,
        "turn": turn,
        "call": "one",
        "tool": "bash",
        "args": {},
        "command": "",
        "digest": "",
        "state": "pending" if turn == "waiting" else "approved",
        "created_at": OLD,
    }


def _job(harness: IngressHarness, conversation: str, job: str, turn: str, state: str) -> dict[str, Any]:
    return {
        "id": job,
        "account": harness.account,
        "conversation": conversation,
        "turn": turn,
        "agent": "agt",
        "asker": "",
        "command": "true",
        "provider": "host",
        "sandbox": "host-x",
        "state": state,
        "token_digest": b"",
        "token_sealed": b"",
        "output": "x" * 1000,
        "truncated": False,
        "created_at": OLD,
    }


def _message(
    harness: IngressHarness, name: str, conversation: str, turn: str | None, created: datetime
) -> dict[str, Any]:
    return {
        "id": name,
        "account": harness.account,
        "conversation": conversation,
        "turn": turn,
        "role": "user",
        "author": "",
        "text": "hello",
        "attachments": [],
        "created_at": created,
    }


def _delivery(harness: IngressHarness, conversation: str, turn: str, state: str) -> dict[str, Any]:
    return {
        "id": f"dlv_{turn}",
        "account": harness.account,
        "event_id": f"evt_{turn}",
        "event_type": "message.completed",
        "event_time": OLD,
        "conversation": conversation,
        "turn": turn,
        "kind": "webhook",
        "target": "end",
        "destination": "end",
        "part": 0,
        "body": b"{}",
        "state": state,
        "attempts": 1,
        "armed_at": OLD,
        "armed_from": 0,
        "uncertain": False,
        "created_at": OLD,
        "updated_at": OLD,
    }


def _usage(harness: IngressHarness, name: str, ended: datetime) -> dict[str, Any]:
    numbers = dict.fromkeys(("requests", "input_tokens", "output_tokens", "micros"), 0)
    texts = dict.fromkeys(("agent", "conversation", "kind", "what", "reason"), "x")
    own = {"id": name, "account": harness.account, "seconds": 1.0, "started_at": OLD, "ended_at": ended}
    return own | numbers | texts


async def _column(harness: IngressHarness, table: Table, column: str) -> set[Any]:
    async with harness.database.read() as connection:
        return set((await connection.execute(select(table.c[column]))).scalars())


async def _count(harness: IngressHarness, table: Table) -> int:
    async with harness.database.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())
