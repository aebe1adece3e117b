"""A gateway of its own in a child process, for the commands that try one out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE = 30.0
"""Seconds that each step may take on a slow machine."""


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

    async def ended(self) -> int | None:
        """Wait for the end and return the exit code; None when it lives on."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._process.wait()
        except TimeoutError:
            return None

    def said(self) -> str:
        """Return the last lines."""
        return " | ".join(self._said[-5:])


@asynccontextmanager
async def child_gateway(directory: Path, *, fault: str | None = None) -> AsyncIterator[Child]:
    """Run a gateway on `dovecote.toml` and `home` of a directory; `fault` is where it is to be killed."""
    from gateway.config.load import foreign_environment

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--port", "0"),
        *("--data", str(directory / "home"), "--config", str(directory / "dovecote.toml")),
        cwd=directory,
        env=foreign_environment() | ({"DOVECOTE_FAULT": fault} if fault else {}),
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
