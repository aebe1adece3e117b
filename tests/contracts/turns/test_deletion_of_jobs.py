"""A deletion ends the jobs of all replicas, and its last words include those of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import EventType, new_id
from gateway.environments.job_replicas import JobReplicas
from gateway.maintenance.deletion import ConversationDeletion
from gateway.store.conversations import conversations
from gateway.store.job_state import JobState, job_end
from gateway.store.turn_state import TurnState
from gateway.store.turns import jobs, turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from turn_worker import TurnWorkerHarness, open_turn_worker


async def _record_job(harness: TurnWorkerHarness, turn: Turn, *, provider: str, replica: str | None) -> Job:
    job = Job(
        id=new_id("job"),
        account=turn.account,
        conversation=turn.conversation,
        turn=turn.id,
        agent=turn.agent,
        asker="",
        command="make",
        provider=provider,
        sandbox="box",
        sandbox_record=None,
        workspace=None,
        token_digest=b"",
        token_sealed=b"",
        created_at=utc_now(),
    )
    async with harness.database.begin() as connection:
        await jobs.insert_job(connection, job)
        await jobs.mark_spawned(connection, job.id, sandbox="box", replica=replica)
    return job


async def _stop_as_other_replica(harness: TurnWorkerHarness, job: Job) -> None:
    """Stop a job when its stop is requested, as the replica that runs it does."""
    while True:
        async with harness.database.read() as connection:
            found = await jobs.get_by_id(connection, job.id)
        if found is not None and found.stop_requested_at is not None:
            await harness.settlement.settle(found, job_end(143, b"", stopping=True))
            return
        await asyncio.sleep(0.01)


async def _cancel(harness: TurnWorkerHarness, turn_id: str) -> None:
    """End a turn, as its worker does."""
    async with harness.database.begin() as connection:
        turn = await turns.get(connection, harness.agent.account, turn_id)
        assert turn is not None
        fence = await conversations.raise_fence(connection, turn.conversation)
        assert await turns.settle(connection, turn, fence=fence, state=TurnState.CANCELLED)


async def test_jobs_of_other_replicas_have_ended_when_a_deletion_goes_on(
    database: Database, tmp_path: Path
) -> None:
    """Also beside a job that cannot be stopped, because its provider is not installed any more."""
    harness = await open_turn_worker(database, tmp_path)
    harness.environment_resolver.job_replicas = JobReplicas(replica="one", local_provider="host")
    turn = await harness.add_turn(running=True)
    elsewhere = await _record_job(harness, turn, provider="host", replica="two")
    lost = await _record_job(harness, turn, provider="gone", replica=None)
    stop = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(harness.relay.run(stop))
        stopping = group.create_task(_stop_as_other_replica(harness, elsewhere))

        def cancel(cancelled: str) -> None:
            group.create_task(_cancel(harness, cancelled))

        deletion = ConversationDeletion(harness.transactions, harness.stream, harness.jobs, cancel=cancel)
        await deletion.end_work(turn.account)
        async with harness.database.read() as connection:
            states = {one.id: one.state for one in await jobs.list_for_account(connection, turn.account)}
            ended = await outbox.list_of_type(connection, turn.id, EventType.JOB_STOPPED)
        assert states == {elsewhere.id: JobState.STOPPED, lost.id: JobState.RUNNING}
        assert [event.data["resultId"] for event in ended] == [elsewhere.id]
        await stopping
        stop.set()
