"""An engine that is slow to start processes: a cleanup waits for it, and ends nothing but its own run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from docker_rig import engine_rig
from sandbox.model import BackgroundJob, ExecRequest
from sandbox.port import Provider
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job, wait_for_output

SLOW_SECONDS = 7.0
"""Seconds for which the start of a cleanup is held; an idle engine needs a fifth of one."""


class SlowEngine:
    """Forwards the connections of an engine's socket, and holds the start of cleanups."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._holds_next = False
        self.held = 0
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection in a task."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """Wait until all connections have ended."""
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection in both directions."""
        back, forth = await asyncio.open_unix_connection(self._engine)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, forth, holds=True))
                group.create_task(self._forward(back, writer, holds=False))
        finally:
            forth.close()
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool
    ) -> None:
        try:
            while piece := await reader.read(65536):
                if holds:
                    await self._hold(piece)
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            writer.close()

    async def _hold(self, piece: bytes) -> None:
        """Hold the request that starts the cleanup which the request before has described."""
        if b"DOVECOTE_TASK=sweep-sweep-" in piece:
            self._holds_next = True
        elif self._holds_next and b"/start" in piece.partition(b"\r\n")[0]:
            self._holds_next = False
            self.held += 1
            await asyncio.sleep(SLOW_SECONDS)


@asynccontextmanager
async def slow_engine(host: str, path: Path) -> AsyncIterator[SlowEngine]:
    """Serve an engine's socket at `path`, slowly."""
    slow = SlowEngine(host.removeprefix("unix://"))
    server = await asyncio.start_unix_server(slow.accept, path)
    try:
        yield slow
    finally:
        server.close()
        await slow.close()


@asynccontextmanager
async def slow_provider(rig: ProviderRig) -> AsyncIterator[tuple[Provider, SlowEngine]]:
    """Open a rig's provider on its engine behind a slow one; paths of sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dovecote-") as directory:
        path = Path(directory, "engine.sock")
        async with slow_engine(rig.settings.host, path) as engine:
            settings = rig.settings.model_copy(update={"host": f"unix://{path}"})
            async with replace(rig, settings=settings).open() as provider:
                yield provider, engine


async def test_a_slow_cleanup_ends_no_job_of_the_sandbox(tmp_path: Path) -> None:
    """A command that was timed out is cleaned up late; a job beside it goes on to its end."""
    rig = engine_rig("slow", tmp_path)
    async with slow_provider(rig) as (provider, engine):
        sandbox = await provider.create(rig.spec())
        waiting = "echo begun; while ! test -e go; do sleep 0.05; done; exit 6"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=waiting))
        await wait_for_output(sandbox, "job_1", b"begun")
        late = await sandbox.run(ExecRequest(script="setsid sleep 40 & sleep 40", timeout=0.5))
        assert (late.timed_out, engine.held) == (True, 1)
        await sandbox.write("go", b"")
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 6
        await provider.destroy(sandbox.id)
