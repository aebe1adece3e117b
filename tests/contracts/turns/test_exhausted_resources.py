"""A turn waits for a resource of the machine that is used up, and the log stays readable."""

from __future__ import annotations

import errno
import io
import logging
import os
import resource
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import structlog

from delivery.database.engine import Database
from delivery.exhaustion import Resource, can_open_files
from gateway.agents.port import Agent, AgentEvent, Finished, MessageCompleted, Tools, TurnInput
from gateway.observability.disk import DiskProbe
from gateway.observability.log_repeats import BURST, INTERVAL_SECONDS, RepeatFilter
from gateway.store.turn_state import TurnState
from turn_worker import open_turn_worker


class StarvedAgent(Agent):
    """An agent that cannot open a file in its first attempt."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Fail as the operating system does, then answer."""
        if turn_input.attempt == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        yield MessageCompleted(text="done")
        yield Finished(output="done")


async def test_a_turn_waits_for_open_files(database: Database, tmp_path: Path) -> None:
    """It goes back into the queue instead of failing with an internal error."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn()
    async with harness.running(StarvedAgent()):
        await harness.wake()
        ended = await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert (ended.attempt, ended.crashes) == (2, 0)


async def test_a_process_without_files_is_reported_as_such(tmp_path: Path) -> None:
    """The disk is not blamed."""
    probe = DiskProbe([tmp_path])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not can_open_files()
        found = (await probe.run()).resources
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found[Resource.OPEN_FILES] == "none can be opened: Too many open files"
    assert found[Resource.DISK] == "ok"


def test_a_line_that_goes_on_is_logged_at_growing_intervals() -> None:
    """A check every two seconds for an hour is few lines; after a minute of silence it is a new line."""
    now = [0.0]
    limit = RepeatFilter(lambda: now[0])

    def is_logged(job: str) -> bool:
        line = {"event": "job.provider_unreachable", "job": job, "error": "away", "timestamp": now[0]}
        return limit.filter(logging.LogRecord("jobs", logging.WARNING, "", 0, line, (), None))

    logged: list[float] = []
    while now[0] < 3600:
        if is_logged("job_1"):
            logged.append(now[0])
        now[0] += 2
    later = [moment for moment in logged if moment >= INTERVAL_SECONDS]
    assert later[:4] == [10, 30, 70, 150]
    assert len(later) <= 12
    assert is_logged("job_2")
    assert not is_logged("job_1")
    now[0] += 60
    assert [is_logged("job_1") for _check in range(3)] == [True] * 3


def test_identical_errors_are_one_line_of_each_interval_with_a_count() -> None:
    """Ids do not make lines different; other errors and the next interval are logged."""
    now, written = [0.0], io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(RepeatFilter(lambda: now[0]))
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.JSONRenderer()))
    logger = logging.getLogger("tests.repeated_lines")
    logger.propagate = False
    logger.addHandler(handler)
    for number in range(BURST * 100):
        logger.warning({"event": "worker.failed", "key": number, "error": "Too many open files"})
        logger.error("socket.accept() out of system resource")
    logger.warning({"event": "worker.failed", "error": "another"})
    assert len(written.getvalue().splitlines()) == 2 * BURST + 1
    now[0] += INTERVAL_SECONDS
    logger.warning({"event": "worker.failed", "key": 1, "error": "Too many open files"})
    assert f"'identical_lines_dropped': {BURST * 99}" in written.getvalue().splitlines()[-1]


@pytest.mark.parametrize("is_in_error", [False, True])
def test_a_fault_of_many_things_is_a_few_lines_a_minute(is_in_error: bool) -> None:
    """A hundred leases that are lost every second for an hour: their ids do not make a flood."""
    now, logged = [0.0], 0
    limit = RepeatFilter(lambda: now[0])
    while now[0] < 3600:
        for number in range(100):
            lease = f"lease {now[0]} {number}"
            line = {"event": "lease.lost", "error": lease if is_in_error else "deleted", "lease": lease}
            record = logging.LogRecord("leases", logging.WARNING, "", 0, line, (), None)
            logged += limit.filter(record)
        now[0] += 1
    assert logged / 60 <= 12
