"""Kill the gateway at every named step from a message to its recorded delivery: nothing is lost (G1, G2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.tally import check_log
from channels.telegram.simulator import Simulator, simulate
from gateway.observability.fault_points import FAULT_POINTS
from gateway_process import GatewayProcess, channel_env
from sandbox_fault_points import SANDBOX_POINTS

CHAT = 7
TIMEOUT_SECONDS = 40.0
"""Seconds for an answer after a restart, on a machine that runs other tests as well."""

COMMAND_POINTS = [
    "reception.before_commit",
    "reception.after_commit",
    "relay.before_append",
    "relay.after_append",
    "turn.claim.before_commit",
    "turn.claim.after_commit",
    "step.begin.before_commit",
    "step.begin.after_commit",
    "step.end.before_commit",
    "step.end.after_commit",
    "turn.settle.before_commit",
    "turn.settle.after_commit",
    "delivery.claim.before_commit",
    "delivery.claim.after_commit",
    "delivery.before_send",
    "delivery.after_send",
    "delivery.noted",
    "delivery.settle.before_commit",
    "delivery.settle.after_commit",
]

JOB_POINTS = [
    "job.start.before_commit",
    "job.start.after_commit",
    "job.before_spawn",
    "job.after_spawn",
    "job.settle.before_commit",
    "job.settle.after_commit",
    "sandbox.create",
    "sandbox.spawn.before",
    "sandbox.spawn.after",
]

PROGRESS_POINTS = ["job.progress.before_commit", "job.progress.after_commit"]

DUPLICATING_POINTS = {"delivery.after_send"}
"""Telegram has the message and the gateway has not recorded it: one extra copy is allowed."""

INTERRUPTED_POINTS = {"step.begin.after_commit", "step.end.before_commit"}
"""The command may have run and its result is not recorded: the answer reports it as interrupted."""

CONCURRENT_POINTS = {"relay.before_append", "relay.after_append"}
"""Events are published while the turn runs, so the command may have begun or not."""


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def process(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Have a gateway with a Telegram channel, not started yet."""
    env = channel_env("telegram", platform.settings())
    gateway = GatewayProcess(tmp_path / "data", env=env)
    yield gateway
    await gateway.stop()


def _texts(platform: Simulator) -> list[str]:
    """Return the texts of the bot's messages, in order."""
    return [post.text for post in platform.messages(CHAT)]


def _is_answer(text: str, point: str) -> bool:
    """Say whether this is the answer to `!echo pigeon` after a kill there, and no text that quotes it."""
    is_interrupted = text.startswith("The gateway was restarted while this ran")
    if point in CONCURRENT_POINTS:
        return is_interrupted or text == "pigeon"
    return is_interrupted if point in INTERRUPTED_POINTS else text == "pigeon"


async def _log(process: GatewayProcess) -> list[dict[str, Any]]:
    async with process.http() as session, session.get("/conversations") as answer:
        (conversation,) = (await answer.json())["items"]
    return [event for event in await process.events(conversation["id"]) if "n" in event]


@pytest.mark.parametrize("point", COMMAND_POINTS)
async def test_a_command_survives_a_kill_at(point: str, platform: Simulator, process: GatewayProcess) -> None:
    """Killed there, the command is answered exactly once after the restart, and its event log is exact."""
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    await platform.say(CHAT, "!echo pigeon")
    assert await process.wait_for_exit() == -9
    await platform.say(CHAT, "!echo second")
    await process.start()
    await platform.wait_until(lambda: "second" in _texts(platform), seconds=TIMEOUT_SECONDS)
    *answers, last = _texts(platform)
    assert last == "second"
    assert all(_is_answer(text, point) for text in answers), answers
    assert len(answers) in ({1, 2} if point in DUPLICATING_POINTS else {1}), answers
    assert check_log(await _log(process), turns=2) is None


@pytest.mark.parametrize("point", JOB_POINTS)
async def test_a_job_survives_a_kill_at(point: str, platform: Simulator, process: GatewayProcess) -> None:
    """Killed there, the job has run exactly once and its result is reported exactly once.

    At a point of its end, its start may not have been delivered yet; that message is then sent again.
    """
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    await platform.say(CHAT, "!&echo run >> runs; wc -l < runs; echo pigeon")
    assert await process.wait_for_exit() == -9
    await process.start()
    await platform.wait_until(
        lambda: any("completed, exit code 0" in text for text in _texts(platform)), seconds=TIMEOUT_SECONDS
    )
    await platform.say(CHAT, "!echo second")
    await platform.wait_until(lambda: "second" in _texts(platform), seconds=TIMEOUT_SECONDS)
    started = [text for text in _texts(platform) if text.startswith("Started job")]
    assert len(started) in ({1, 2} if point.startswith("job.settle.") else {1})
    result, *others = [text for text in _texts(platform) if text not in started]
    assert "completed, exit code 0" in result
    assert result.endswith("1\npigeon")
    assert others == ["second"]
    log = await _log(process)
    (completed,) = [event for event in log if event["type"] == "job.completed"]
    assert completed["data"]["output"] == "1\npigeon\n"


@pytest.mark.parametrize("point", PROGRESS_POINTS)
async def test_the_message_of_a_job_survives_a_kill_at(
    point: str, platform: Simulator, process: GatewayProcess
) -> None:
    """Killed there, the job still has one message, which says in the end how the job ended."""
    quick = {"DOVECOTE_JOB_PROGRESS_AFTER": "0.2", "DOVECOTE_RECONCILE_INTERVAL": "0.2"}
    await process.start(env={"DOVECOTE_FAULT_POINT": point, **quick})
    await platform.say(CHAT, "!&echo pigeon; until test -e go; do sleep 0.1; done")
    assert await process.wait_for_exit() == -9
    await process.start(env=quick)
    await platform.wait_until(
        lambda: any("has been running for" in text for text in _texts(platform)), seconds=TIMEOUT_SECONDS
    )
    await platform.say(CHAT, "!touch go")
    await platform.wait_until(
        lambda: any(" completed after" in text for text in _texts(platform)), seconds=TIMEOUT_SECONDS
    )
    (shown,) = [text for text in _texts(platform) if text.startswith("Job ") and "job_" not in text]
    assert shown.endswith("(exit code 0).")


def test_every_point_is_exercised_somewhere() -> None:
    """A fault point that no test passes would prove nothing."""
    here = {*COMMAND_POINTS, *JOB_POINTS, *PROGRESS_POINTS, *SANDBOX_POINTS}
    elsewhere = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    missing = [point for point in FAULT_POINTS if point not in here and f'"{point}"' not in elsewhere]
    assert not missing
