"""`dovecote doctor --simulate`: a gateway of its own against a platform's simulator, end to end."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.cli.checks import Check, failed, well
from gateway.cli.failure import WrongUsage
from gateway.cli.output import short

ROOM = 1001
PATIENCE = 30.0
"""Seconds that each step may take on a slow machine."""

TRIES = (
    ("a message is answered", "!echo hello from the sandbox", "hello from the sandbox"),
    ("a background job's result comes home", "!&sleep 1; echo the job is done", "the job is done"),
)
"""What is tried: what it shows, what a person says, and what must come back."""


async def simulate_platform(kind: str) -> list[Check]:
    """Start the platform's simulator and a gateway with temporary data, talk, and report."""
    from channels.registry import UnknownKind, plugin

    try:
        adapter = plugin(kind)
    except UnknownKind as error:
        raise WrongUsage(str(error)) from error
    if adapter.simulate is None:
        raise WrongUsage(f"{kind} comes without a simulator")
    with tempfile.TemporaryDirectory(prefix="dovecote-") as directory:
        async with adapter.simulate() as (simulator, settings):
            return await _try(Path(directory), kind, simulator, settings)


async def _try(directory: Path, kind: str, simulator: Any, settings: Mapping[str, Any]) -> list[Check]:
    _write_settings(directory, kind, settings)
    begun = time.monotonic()
    async with _child_gateway(directory) as child:
        if not await child.is_ready():
            return [
                failed("gateway", f"does not start: {short(child.said(), 600)}", "look at `dovecote doctor`")
            ]
        found = [well("gateway", f"ready after {time.monotonic() - begun:.1f} s, with data of its own")]
        for subject, text, wanted in TRIES:
            found.append(await _say(simulator, subject, text, wanted))
        return found


def _write_settings(directory: Path, kind: str, settings: Mapping[str, Any]) -> None:
    """Write the child's settings; JSON's strings, lists and booleans are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    text = "\n".join([f"[channels.{kind}]", *lines])
    (directory / "dovecote.toml").write_text(text, encoding="utf-8")


async def _say(simulator: Any, subject: str, text: str, wanted: str) -> Check:
    begun = time.monotonic()
    await simulator.say(ROOM, text)

    def is_answered() -> bool:
        return any(wanted in post.text and text not in post.text for post in simulator.messages(ROOM))

    try:
        await simulator.wait_until(is_answered, seconds=PATIENCE)
    except TimeoutError:
        heard = " | ".join(post.text for post in simulator.messages(ROOM)) or "nothing"
        return failed(subject, f"{text!r} was answered by: {short(heard, 400)}", "look at `dovecote doctor`")
    return well(subject, f"{text!r} came back as {wanted!r} after {time.monotonic() - begun:.1f} s")


class Child:
    """A gateway process and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: list[str] = []
        self._known = asyncio.Event()
        self._ready = False

    async def listen(self) -> None:
        """Take what the process says until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._said.append(line.decode("utf-8", "replace").rstrip())
            if " ready " in self._said[-1]:
                self._ready = True
                self._known.set()
        self._known.set()

    async def is_ready(self) -> bool:
        """Wait until the gateway receives or has given up."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._known.wait()
        except TimeoutError:
            return False
        return self._ready

    def said(self) -> str:
        """Return the last lines."""
        return " | ".join(self._said[-5:])


@asynccontextmanager
async def _child_gateway(directory: Path) -> AsyncIterator[Child]:
    from gateway.settings import foreign_environment

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--port", "0"),
        *("--data", str(directory / "home"), "--config", str(directory / "dovecote.toml")),
        cwd=directory,
        env=foreign_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    child = Child(process)
    async with asyncio.TaskGroup() as group:
        group.create_task(child.listen())
        try:
            yield child
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the gateway to stop; after ten seconds do not ask."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
