"""`dovecote doctor --simulate`: a gateway of its own against a platform's simulator, end to end."""

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

from gateway.cli.doctor.check import Check, failed, well
from gateway.cli.doctor.child_gateway import PATIENCE, Child, child_gateway
from gateway.cli.errors import WrongUsage
from gateway.cli.output import short

ROOM = 1001
TRIES = (
    ("a message is answered", "!echo hello from the sandbox", "hello from the sandbox"),
    ("a background job's result comes home", "!&sleep 1; echo the job is done", "the job is done"),
)
"""What is tried: what it shows, what a person says, and what must come back."""


CRASH = "step.end.after_commit"
"""Where the gateway is killed: the command has run, nothing of it has been told."""

COUNTED = "!echo once >> runs; echo it ran $(wc -l < runs) time"
RAN_ONCE = "it ran 1 time"
LATER = ("!echo and on", "and on")
"""What is said after the recovery, and what must come back: anything said twice stands before it."""

LOOK = "look at `dovecote doctor`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A platform's simulator, and a directory for the gateways that talk to it."""

    directory: Path
    simulator: Any

    def heard(self, words: str, *, said: str) -> int:
        """Count the messages that hold these words; what the person said is not one."""
        posts = self.simulator.messages(ROOM)
        return sum(words in post.text and said not in post.text for post in posts)

    async def is_answered(self, said: str, words: str) -> bool:
        """Wait for an answer; False when it does not come."""
        try:
            await self.simulator.wait_until(lambda: self.heard(words, said=said) > 0, seconds=PATIENCE)
        except TimeoutError:
            return False
        return True

    def instead(self) -> str:
        """Return what was heard."""
        return short(" | ".join(post.text for post in self.simulator.messages(ROOM)) or "nothing", 400)


async def simulate_platform(kind: str) -> list[Check]:
    """Start the platform's simulator and a gateway with temporary data, talk, crash, and report."""
    async with _stage(kind) as stage:
        return [*await _try(stage), *await _crash(stage)]


async def prove_recovery(kind: str = "telegram") -> list[Check]:
    """Have a gateway killed in the middle of a turn, and report how the next one answers."""
    async with _stage(kind) as stage:
        return await _crash(stage)


@asynccontextmanager
async def _stage(kind: str) -> AsyncIterator[Stage]:
    from channels.registry import UnknownKind, plugin

    try:
        adapter = plugin(kind)
    except UnknownKind as error:
        raise WrongUsage(str(error)) from error
    if adapter.simulate is None:
        raise WrongUsage(f"{kind} comes without a simulator")
    with tempfile.TemporaryDirectory(prefix="dovecote-") as directory:
        async with adapter.simulate() as (simulator, settings):
            _write_settings(Path(directory), kind, settings)
            yield Stage(directory=Path(directory), simulator=simulator)


async def _try(stage: Stage) -> list[Check]:
    begun = time.monotonic()
    async with child_gateway(stage.directory) as child:
        if not await child.is_ready():
            return [_stillborn(child)]
        found = [well("gateway", f"ready after {time.monotonic() - begun:.1f} s, with data of its own")]
        for subject, text, wanted in TRIES:
            found.append(await _say(stage, subject, text, wanted))
        return found


def _stillborn(child: Child) -> Check:
    return failed("gateway", f"does not start: {short(child.said(), 600)}", LOOK)


async def _crash(stage: Stage) -> list[Check]:
    """Have the gateway killed after a command has run, start another, and count what is said."""
    async with child_gateway(stage.directory, fault=CRASH) as child:
        if not await child.is_ready():
            return [_stillborn(child)]
        await stage.simulator.say(ROOM, COUNTED)
        if await child.ended() != -signal.SIGKILL:
            return [failed("recovery", f"the turn did not come to its end: {stage.instead()}", LOOK)]
        killed = time.monotonic()
    async with child_gateway(stage.directory) as child:
        if not await child.is_ready():
            return [_stillborn(child)]
        if not await stage.is_answered(COUNTED, RAN_ONCE):
            return [failed("recovery", f"after a crash the answer was: {stage.instead()}", LOOK)]
        took = time.monotonic() - killed
        await stage.simulator.say(ROOM, LATER[0])
        return [await _count(stage, took)]


async def _count(stage: Stage, took: float) -> Check:
    answered = await stage.is_answered(*LATER)
    times = stage.heard(RAN_ONCE, said=COUNTED)
    if times != 1 or not answered:
        return failed("recovery", f"the answer came {times} times: {stage.instead()}", LOOK)
    detail = f"killed in the middle of a turn ({CRASH}), started again: the command ran once"
    return well("recovery", f"{detail}, its answer came once, {took:.1f} s after the crash")


def _write_settings(directory: Path, kind: str, settings: Mapping[str, Any]) -> None:
    """Write the child's settings; JSON's strings, lists and booleans are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    text = "\n".join([f"[channels.{kind}]", *lines])
    (directory / "dovecote.toml").write_text(text, encoding="utf-8")


async def _say(stage: Stage, subject: str, text: str, wanted: str) -> Check:
    begun = time.monotonic()
    await stage.simulator.say(ROOM, text)
    if not await stage.is_answered(text, wanted):
        return failed(subject, f"{text!r} was answered by: {stage.instead()}", LOOK)
    return well(subject, f"{text!r} came back as {wanted!r} after {time.monotonic() - begun:.1f} s")
