"""A running job is reported less and less often, by one process, and never after its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import routes
from delivery.deliveries.part import Part, decode_part
from delivery.deliveries.route import Route
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from gateway.jobs.progress import JobProgress
from gateway.store.job_state import job_end
from gateway.store.turns import jobs
from gateway.store.turns.jobs import Job
from turn_worker import TurnWorkerHarness, open_turn_worker


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """A conversation with a chat."""
    opened = await open_turn_worker(database, tmp_path)
    address = Address(channel="chn_1", room="room")
    chat = Route.to_chat(account=opened.agent.account, conversation=opened.conversation, address=address)
    async with database.begin() as connection:
        await routes.add_route(connection, chat)
    return opened


async def _add_job(harness: TurnWorkerHarness) -> Job:
    job = Job(
        id=new_id("job"),
        account=harness.agent.account,
        conversation=harness.conversation,
        turn=new_id("trn"),
        agent=harness.agent.id,
        asker="",
        command="make",
        provider="memory",
        sandbox="box",
        sandbox_record=None,
        workspace=None,
        token_digest=b"",
        token_sealed=b"",
        created_at=utc_now(),
    )
    async with harness.database.begin() as connection:
        await jobs.insert_job(connection, job)
    return job


async def _events(harness: TurnWorkerHarness, job: Job) -> list[Event]:
    async with harness.database.read() as connection:
        return await outbox.list_for_turn(connection, job.turn)


async def _parts(harness: TurnWorkerHarness) -> Sequence[Part]:
    async with harness.database.read() as connection:
        rows = await connection.execute(
            select(deliveries.c.body)
            .where(deliveries.c.event_type.startswith("job."))
            .order_by(deliveries.c.position)
        )
    return [decode_part(row.body) for row in rows]


async def test_reports_of_a_job_change_one_message_until_its_end(harness: TurnWorkerHarness) -> None:
    """The first report has the message; later ones, of any replica, and the end name it."""
    job = await _add_job(harness)
    one, two = (JobProgress(harness.transactions, after=1e-9) for _replica in range(2))
    await one.report(job, b"first\n")
    await two.report(job, b"second \xff\0\n")
    assert await harness.settlement.settle(job, job_end(0, b"done"))
    await one.report(job, b"too late\n")
    first, second, end, *_queued = await _events(harness, job)
    assert [event.type for event in (first, second, end)] == [
        EventType.JOB_PROGRESS,
        EventType.JOB_PROGRESS,
        EventType.JOB_COMPLETED,
    ]
    assert "replaces" not in first.data
    assert (second.data["replaces"], end.data["replaces"]) == (first.id, first.id)
    shown = await _parts(harness)
    assert [part.edits for part in shown] == [None, first.id, first.id]
    assert shown[2].text.startswith("Job `make` completed after")


async def test_a_report_that_another_replica_made_is_not_made_again(harness: TurnWorkerHarness) -> None:
    """A process that has made no report finds the count when its own is due."""
    job = await _add_job(harness)
    await JobProgress(harness.transactions, after=1e-9).report(job, b"")
    restarted = JobProgress(harness.transactions, after=1e-9)
    (first,) = await _events(harness, job)
    hours = JobProgress(harness.transactions, after=3600)
    await hours.report(job, b"")
    assert await _events(harness, job) == [first]
    await restarted.report(job, b"")
    assert [event.data.get("replaces") for event in await _events(harness, job)] == [None, first.id]


async def test_a_job_that_ends_soon_has_no_message(harness: TurnWorkerHarness) -> None:
    """Its result is the only message."""
    job = await _add_job(harness)
    await JobProgress(harness.transactions, after=3600).report(job, b"")
    await JobProgress(harness.transactions, after=0).report(job, b"")
    assert await harness.settlement.settle(job, job_end(0, b"done"))
    assert await _parts(harness) == []
