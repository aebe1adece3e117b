"""A recorded job that was not started yet is given up only when nothing can start it any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from structlog.testing import capture_logs

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import EventType, new_id
from gateway.environments.job_replicas import JobReplicas
from gateway.jobs.reconciler import AWAY_SECONDS, ELSEWHERE_SECONDS, START_TIMEOUT, CopiedJobs, JobReconciler
from gateway.store.conversations import conversations
from gateway.store.job_state import JobState
from gateway.store.turn_state import TurnState
from gateway.store.turns import jobs, turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from memory_sandboxes import MemoryInstance, MemorySandbox
from sandbox.model import BackgroundJobState, JobReport, SandboxId
from sandbox.port import Sandbox
from sandbox.testing.waiting import until
from turn_worker import TurnWorkerHarness, open_turn_worker

BOX = SandboxId("box")

Answer = Literal["exit", "silence", "broken"]


class ReconcilingProcess:
    """A process that reconciles jobs, with its own clock."""

    def __init__(self, harness: TurnWorkerHarness, *, replica: str | None = None) -> None:
        self.now = 0.0
        self.reported = BackgroundJobState.UNKNOWN
        self._replicas = JobReplicas(replica=replica, local_provider="memory")
        self._reconciler = JobReconciler(
            harness.database, self._get_sandbox, harness.settlement, clock=lambda: self.now
        )

    async def _get_sandbox(self, job: Job) -> Sandbox:
        self._replicas.check(job)
        return ReportingSandbox(self.reported)

    async def run_for(self, seconds: float) -> None:
        """Reconcile at the beginning and at the end of some time."""
        await self._reconciler.run_once()
        self.now += seconds
        await self._reconciler.run_once()


class ReportingSandbox(MemorySandbox):
    """A sandbox in which each job is in one state."""

    def __init__(self, state: BackgroundJobState) -> None:
        super().__init__(BOX, {BOX: MemoryInstance(label="box")})
        self._state = state

    async def report(self, job_id: str) -> JobReport:
        """Report the state."""
        del job_id
        return JobReport(state=self._state)


class AnsweringSandbox(MemorySandbox):
    """A sandbox with one answer to the question for a job: an error, a silence without end, or an exit."""

    def __init__(self, answer: Answer, asked: asyncio.Event) -> None:
        super().__init__(BOX, {BOX: MemoryInstance(label="box")})
        self._answer = answer
        self._asked = asked

    async def report(self, job_id: str) -> JobReport:
        """Give the answer."""
        del job_id
        self._asked.set()
        if self._answer == "silence":
            await asyncio.Event().wait()
        if self._answer == "broken":
            raise KeyError("sandboxID")
        return JobReport(state=BackgroundJobState.EXITED, exit_code=0, output=b"done")


async def _record_job(harness: TurnWorkerHarness, turn: Turn) -> Job:
    """Record a job of a turn, as the gateway does before it starts the command."""
    job = Job(
        id=new_id("job"),
        account=turn.account,
        conversation=turn.conversation,
        turn=turn.id,
        agent=turn.agent,
        asker="",
        command="make",
        provider="memory",
        sandbox=BOX,
        sandbox_record=None,
        workspace=None,
        token_digest=b"",
        token_sealed=b"",
        created_at=utc_now().replace(year=2020),
    )
    async with harness.database.begin() as connection:
        await jobs.insert_job(connection, job)
    return job


async def _state_of(harness: TurnWorkerHarness, job: Job) -> tuple[JobState, str | None]:
    async with harness.database.read() as connection:
        found = await jobs.get_by_id(connection, job.id)
    assert found is not None
    return found.state, found.reason


async def _end_turn(harness: TurnWorkerHarness, turn: Turn) -> None:
    async with harness.database.begin() as connection:
        fence = await conversations.raise_fence(connection, turn.conversation)
        assert await turns.settle(connection, turn, fence=fence, state=TurnState.FAILED)


async def test_a_job_waits_for_the_turn_that_will_start_it(database: Database, tmp_path: Path) -> None:
    """However old the job is, and however long the gateway runs: its turn has not ended."""
    harness = await open_turn_worker(database, tmp_path)
    job = await _record_job(harness, await harness.add_turn(running=True))
    await ReconcilingProcess(harness).run_for(10 * START_TIMEOUT)
    assert await _state_of(harness, job) == (JobState.RUNNING, None)


async def test_the_time_runs_only_while_a_gateway_runs(database: Database, tmp_path: Path) -> None:
    """Gateways that stop before the time is over give up nothing, even if years pass between them."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    job = await _record_job(harness, turn)
    await _end_turn(harness, turn)
    for _restart in range(3):
        await ReconcilingProcess(harness).run_for(START_TIMEOUT / 2)
        assert await _state_of(harness, job) == (JobState.RUNNING, None)
    await ReconcilingProcess(harness).run_for(START_TIMEOUT + 1)
    assert await _state_of(harness, job) == (JobState.FAILED, "never_started")
    async with harness.database.read() as connection:
        assert await turns.next_turn(connection, turn.conversation) is None
        (event,) = await outbox.list_of_type(connection, turn.id, EventType.JOB_FAILED)
    assert event.data["reason"] == "never_started"


async def test_the_time_begins_again_once_the_job_is_seen(database: Database, tmp_path: Path) -> None:
    """A sandbox that did not have the job for a moment, long ago, is asked again before it is given up."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    job = await _record_job(harness, turn)
    await _end_turn(harness, turn)
    process = ReconcilingProcess(harness)
    for state in (BackgroundJobState.UNKNOWN, BackgroundJobState.RUNNING):
        process.reported = state
        await process.run_for(START_TIMEOUT / 2)
    process.reported = BackgroundJobState.UNKNOWN
    await process.run_for(START_TIMEOUT / 2)
    assert await _state_of(harness, job) == (JobState.RUNNING, None)
    await process.run_for(START_TIMEOUT)
    assert (await _state_of(harness, job))[0] is JobState.FAILED


async def test_an_end_that_nothing_recorded_has_a_reason(database: Database, tmp_path: Path) -> None:
    """People read why there is an exit code 137, unless they stopped the job themselves."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    gone = JobReport(state=BackgroundJobState.EXITED, exit_code=137, unrecorded=True)
    job, stopped = await _record_job(harness, turn), await _record_job(harness, turn)
    await harness.settlement.apply_report(job, gone)
    await harness.settlement.apply_report(replace(stopped, stop_requested_at=utc_now()), gone)
    assert await _state_of(harness, job) == (JobState.FAILED, "end_unrecorded")
    assert await _state_of(harness, stopped) == (JobState.STOPPED, None)
    async with harness.database.read() as connection:
        inputs = [one.input for one in await turns.list_open(connection, turn.conversation)]
    assert any("failed, end_unrecorded: its processes are gone" in text for text in inputs)


async def test_a_started_job_that_its_sandbox_lost_is_not_called_unstarted(
    database: Database, tmp_path: Path
) -> None:
    """The sandbox was replaced under its name, as after a change of its record: people read that."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    job = await _record_job(harness, turn)
    async with harness.database.begin() as connection:
        await jobs.mark_spawned(connection, job.id, sandbox=BOX)
    await _end_turn(harness, turn)
    await ReconcilingProcess(harness).run_for(START_TIMEOUT + 1)
    assert await _state_of(harness, job) == (JobState.FAILED, "sandbox_recreated")


async def test_a_job_is_left_to_the_replica_that_runs_it(database: Database, tmp_path: Path) -> None:
    """Another replica, whose machine does not have the job, neither fails it nor calls it lost."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    job = await _record_job(harness, turn)
    async with harness.database.begin() as connection:
        await jobs.mark_spawned(connection, job.id, sandbox=BOX, replica="one")
    await _end_turn(harness, turn)
    other = ReconcilingProcess(harness, replica="two")
    await other.run_for(10 * START_TIMEOUT)
    assert await _state_of(harness, job) == (JobState.RUNNING, None)
    with capture_logs() as lines:
        await other.run_for(ELSEWHERE_SECONDS + 1)
    (warned,) = [line["error"] for line in lines if line["event"] == "job.provider_unreachable"]
    assert "start one gateway alone with replicas = 1" in warned
    async with harness.database.read() as connection:
        found = await jobs.get_by_id(connection, job.id)
    assert found is not None
    assert found.unreachable_since is not None
    assert found.state is JobState.RUNNING
    with capture_logs() as lines:
        await ReconcilingProcess(harness, replica="one").run_for(START_TIMEOUT + 1)
    assert [line["job"] for line in lines if line["event"] == "job.provider_reached"] == [job.id]
    assert await _state_of(harness, job) == (JobState.FAILED, "sandbox_recreated")


async def test_a_sandbox_that_fails_or_hangs_delays_only_its_own_jobs(
    database: Database, tmp_path: Path
) -> None:
    """The jobs before it and after it are settled, whichever order they are listed in."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    answers: tuple[Answer, ...] = ("exit", "silence", "broken", "exit", "broken", "silence", "exit")
    made: dict[str, Answer] = {(await _record_job(harness, turn)).id: answer for answer in answers}
    asked = {job: asyncio.Event() for job in made}

    async def get_sandbox(job: Job) -> Sandbox:
        return AnsweringSandbox(made[job.id], asked[job.id])

    async def is_settled(job: str) -> bool:
        async with database.read() as connection:
            found = await jobs.get_by_id(connection, job)
        return found is not None and found.state is JobState.COMPLETED

    async def is_unreachable(job: str) -> bool:
        async with database.read() as connection:
            found = await jobs.get_by_id(connection, job)
        return found is not None and found.unreachable_since is not None

    stop = asyncio.Event()
    reconciler = JobReconciler(database, get_sandbox, harness.settlement)
    running = asyncio.create_task(reconciler.run(stop, interval=0.01))
    for job, answer in made.items():
        match answer:
            case "exit":
                await until(partial(is_settled, job))
            case "broken":
                await until(partial(is_unreachable, job))
            case "silence":
                await asked[job].wait()
    stop.set()
    await running


def test_only_jobs_of_one_machine_belong_to_a_replica() -> None:
    """A provider that every replica reaches keeps no owner, nor does a gateway that is alone."""
    several = JobReplicas(replica="one", local_provider="host")
    assert (several.owner("host"), several.owner("docker")) == ("one", None)
    assert JobReplicas().owner("host") is None


async def test_a_gateway_that_is_alone_reaches_the_jobs_of_every_name(
    database: Database, tmp_path: Path
) -> None:
    """Its data directory had another name before it was restored; the owner is still recorded."""
    alone = JobReplicas(replica="restored", local_provider="host", alone=True)
    assert alone.owner("host") == "restored"
    harness = await open_turn_worker(database, tmp_path)
    job = await _record_job(harness, await harness.add_turn(running=True))
    alone.check(replace(job, replica="original"))


async def test_a_job_of_a_replica_that_is_away_ends_where_its_directory_was_copied_to(
    database: Database, tmp_path: Path
) -> None:
    """As after a restore of several replicas; not while its own replica may be back, nor for another copy."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn(running=True)
    job, unknown = await _record_job(harness, turn), await _record_job(harness, turn)
    async with harness.database.begin() as connection:
        for one in (job, unknown):
            await jobs.mark_spawned(connection, one.id, sandbox=BOX, replica="original")
    present = {"original"}

    async def is_running(replica: str) -> bool:
        return replica in present

    async def get_copied(asked: Job) -> Sandbox:
        if asked.id == job.id:
            return AnsweringSandbox("exit", asyncio.Event())
        return MemorySandbox(BOX, {BOX: MemoryInstance(label="box")})

    restored = JobReplicas(replica="restored", local_provider="memory", is_running=is_running)
    now = 0.0

    async def check(asked: Job) -> Sandbox:
        restored.check(asked)
        raise AssertionError("the job is of another replica")

    copied = CopiedJobs(is_away=restored.is_away, get_sandbox=get_copied)
    reconciler = JobReconciler(database, check, harness.settlement, copied=copied, clock=lambda: now)
    for present_now in ({"original"}, set[str](), {"original"}, set[str]()):
        present.clear()
        present.update(present_now)
        for _pass in range(2):
            now += AWAY_SECONDS / 2
            await reconciler.run_once()
    assert await _state_of(harness, job) == (JobState.RUNNING, None)
    now += AWAY_SECONDS
    await reconciler.run_once()
    assert await _state_of(harness, job) == (JobState.COMPLETED, None)
    assert await _state_of(harness, unknown) == (JobState.RUNNING, None)
