"""A temporary gateway in a child process, for commands that test one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

STEP_TIMEOUT = 30.0
"""The time limit of each step in seconds, for slow machines."""


class ChildGateway:
    """A gateway process with its output so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._output: list[str] = []
        self._outcome_known = asyncio.Event()
        self._ready = False

    async def read_output(self) -> None:
        """Read the process's output until it exits."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._output.append(line.decode("utf-8", "replace").rstrip())
            if " ready " in self._output[-1]:
                self._ready = True
                self._outcome_known.set()
        self._outcome_known.set()

    async def wait_until_ready(self) -> bool:
        """Wait until the gateway is ready or has exited."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                await self._outcome_known.wait()
        except TimeoutError:
            return False
        return self._ready

    async def wait(self) -> int | None:
        """Wait for the exit and return the exit code; None when the process still runs."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                return await self._process.wait()
        except TimeoutError:
            return None

    def last_output(self) -> str:
        """Return the last lines of the output."""
        return " | ".join(self._output[-5:])


@asynccontextmanager
async def child_gateway(directory: Path, *, fault_point: str | None = None) -> AsyncIterator[ChildGateway]:
    """Run a gateway with a directory's `dovecote.toml` and `home`; `fault` is a fault point."""
    from gateway.config.load import environment_without_ours

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--port", "0"),
        *("--data", str(directory / "home"), "--config", str(directory / "dovecote.toml")),
        cwd=directory,
        env=environment_without_ours() | ({"DOVECOTE_FAULT_POINT": fault_point} if fault_point else {}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    child = ChildGateway(process)
    async with asyncio.TaskGroup() as group:
        group.create_task(child.read_output())
        try:
            yield child
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop the gateway; kill it after ten seconds."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
