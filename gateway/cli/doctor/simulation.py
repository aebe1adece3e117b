"""`dovecote doctor --simulate`: an end-to-end test of a temporary gateway against a platform's simulator."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli.doctor.check import DoctorCheck, failed, passed
from gateway.cli.doctor.child_gateway import STEP_TIMEOUT, ChildGateway, child_gateway
from gateway.cli.errors import UsageError
from gateway.cli.output import short

ROOM = 1001
SCENARIOS = (
    ("a message is answered", "!echo hello from the sandbox", "hello from the sandbox"),
    ("a background job's result is delivered", "!&sleep 1; echo the job is done", "the job is done"),
)
"""The tests: what each shows, the message to send, and the expected text."""


CRASH_POINT = "step.end.after_commit"
"""The fault point that kills the gateway: the command has run, its result is not reported yet."""

COUNTING_COMMAND = "!echo once >> runs; echo it ran $(wc -l < runs) time"
RAN_ONCE = "it ran 1 time"
FOLLOW_UP = ("!echo and on", "and on")
"""The message after the recovery and its expected answer; duplicates would arrive before it."""

REMEDY = "run `dovecote doctor`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationStage:
    """A platform's simulator, and a directory for the gateways that connect to it."""

    directory: Path
    simulator: Any

    def count_messages(self, text: str, *, sent: str) -> int:
        """Count the bot's messages that contain a text."""
        posts = self.simulator.messages(ROOM)
        return sum(text in post.text and sent not in post.text for post in posts)

    async def wait_for_answer(self, sent: str, text: str) -> bool:
        """Wait for an answer; False after the time limit."""
        try:
            await self.simulator.wait_until(
                lambda: self.count_messages(text, sent=sent) > 0, seconds=STEP_TIMEOUT
            )
        except TimeoutError:
            return False
        return True

    def received_text(self) -> str:
        """Return the text of the received messages."""
        return short(" | ".join(post.text for post in self.simulator.messages(ROOM)) or "nothing", 400)


async def simulate_platform(kind: str) -> list[DoctorCheck]:
    """Test a temporary gateway against the platform's simulator, with a crash, and yield the checks."""
    async with _open_stage(kind) as stage:
        return [*await _run_scenarios(stage), *await _run_crash(stage)]


async def check_recovery(kind: str = "telegram") -> list[DoctorCheck]:
    """Kill a gateway in the middle of a turn, and check how the next one answers."""
    async with _open_stage(kind) as stage:
        return await _run_crash(stage)


@asynccontextmanager
async def _open_stage(kind: str) -> AsyncIterator[SimulationStage]:
    from channels.registry import UnknownChannelKind, plugin

    try:
        adapter = plugin(kind)
    except UnknownChannelKind as error:
        raise UsageError(str(error)) from error
    if adapter.simulate is None:
        raise UsageError(f"{kind} has no simulator")
    with tempfile.TemporaryDirectory(prefix="dovecote-") as directory:
        async with adapter.simulate() as (simulator, settings):
            _write_settings(Path(directory), kind, settings)
            yield SimulationStage(directory=Path(directory), simulator=simulator)


async def _run_scenarios(stage: SimulationStage) -> list[DoctorCheck]:
    begun = time.monotonic()
    async with child_gateway(stage.directory) as child:
        if not await child.wait_until_ready():
            return [_start_failure(child)]
        found = [passed("gateway", f"ready after {time.monotonic() - begun:.1f} s, with temporary data")]
        for subject, text, wanted in SCENARIOS:
            found.append(await _check_answer(stage, subject, text, wanted))
        return found


def _start_failure(child: ChildGateway) -> DoctorCheck:
    return failed("gateway", f"does not start: {short(child.last_output(), 600)}", REMEDY)


async def _run_crash(stage: SimulationStage) -> list[DoctorCheck]:
    """Kill the gateway after a command has run, start another, and count its answers."""
    async with child_gateway(stage.directory, fault_point=CRASH_POINT) as child:
        if not await child.wait_until_ready():
            return [_start_failure(child)]
        await stage.simulator.say(ROOM, COUNTING_COMMAND)
        if await child.wait() != -signal.SIGKILL:
            return [failed("recovery", f"the turn did not end: {stage.received_text()}", REMEDY)]
        killed = time.monotonic()
    async with child_gateway(stage.directory) as child:
        if not await child.wait_until_ready():
            return [_start_failure(child)]
        if not await stage.wait_for_answer(COUNTING_COMMAND, RAN_ONCE):
            return [failed("recovery", f"after a crash the answer was: {stage.received_text()}", REMEDY)]
        took = time.monotonic() - killed
        await stage.simulator.say(ROOM, FOLLOW_UP[0])
        return [await _check_answered_once(stage, took)]


async def _check_answered_once(stage: SimulationStage, took: float) -> DoctorCheck:
    answered = await stage.wait_for_answer(*FOLLOW_UP)
    times = stage.count_messages(RAN_ONCE, sent=COUNTING_COMMAND)
    if times != 1 or not answered:
        return failed("recovery", f"the answer came {times} times: {stage.received_text()}", REMEDY)
    detail = f"killed in the middle of a turn ({CRASH_POINT}), restarted: the command ran once"
    return passed("recovery", f"{detail}, its answer came once, {took:.1f} s after the crash")


def _write_settings(directory: Path, kind: str, settings: Mapping[str, Any]) -> None:
    """Write the child's settings; JSON strings, lists and booleans are valid TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    text = "\n".join([f"[channels.{kind}]", *lines])
    (directory / "dovecote.toml").write_text(text, encoding="utf-8")


async def _check_answer(stage: SimulationStage, subject: str, text: str, expected: str) -> DoctorCheck:
    begun = time.monotonic()
    await stage.simulator.say(ROOM, text)
    if not await stage.wait_for_answer(text, expected):
        return failed(subject, f"{text!r} was answered by: {stage.received_text()}", REMEDY)
    return passed(subject, f"{text!r} came back as {expected!r} after {time.monotonic() - begun:.1f} s")
