"""One process in a container, from its start to its exit code, with bounded output."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiodocker.execs import Exec
from aiodocker.stream import Stream

from sandbox.docker.errors import translate_errors
from sandbox.errors import SandboxError, SandboxGone
from sandbox.model import OUTPUT_CAP, ExecResult, OutputListener

STDIN, STDERR = 0, 2
DROP_PAUSE_SECONDS = 0.002
"""Seconds between two reads of output that is dropped: this slows a flood and bounds the gateway's work."""

FINAL_OUTPUT_SECONDS = 0.5
"""Seconds to wait for the last output of a killed process."""

_EXIT_TIMEOUT_SECONDS, _POLL_SECONDS = 2.0, 0.01
START_TIMEOUT_SECONDS = 10.0
"""Seconds within which an engine starts a process whose start it has confirmed."""


@dataclass(slots=True, kw_only=True)
class BoundedBuffer:
    """The first `limit` bytes of a stream."""

    limit: int
    content: bytearray = field(default_factory=bytearray)
    truncated: bool = False
    on_content: Callable[[bytes], None] | None = None

    def add(self, chunk: bytes) -> None:
        """Append output; bytes beyond the limit are dropped."""
        free = self.limit - len(self.content)
        self.truncated = self.truncated or len(chunk) > free
        self.content += chunk[:free]
        if self.on_content is not None and free > 0:
            self.on_content(chunk[:free])


class Execution:
    """A started process of a container."""

    def __init__(self, execution: Exec, stream: Stream, limit: int) -> None:
        self._execution = execution
        self._stream = stream
        self._started = time.monotonic()
        self._out, self._error = BoundedBuffer(limit=limit), BoundedBuffer(limit=limit)

    def listen(self, listener: OutputListener) -> None:
        """Pass the output that is kept to a listener as it arrives."""
        self._out.on_content = partial(listener, "stdout")
        self._error.on_content = partial(listener, "stderr")

    async def wait(self, stdin: bytes) -> int:
        """Write the input, read the output until its end and return the exit code."""
        feeding = asyncio.ensure_future(self._feed(stdin))
        try:
            await self.drain()
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
        return await self.exit_code()

    async def _feed(self, stdin: bytes) -> None:
        """Write the input; a command that ends without reading it is no error."""
        try:
            if stdin:
                await self._stream.write_in(stdin)
        except (OSError, RuntimeError):
            return

    async def drain(self) -> None:
        """Read both streams until their end."""
        with translate_errors():
            while (message := await self._stream.read_out()) is not None:
                buffer = self._error if message.stream == STDERR else self._out
                if buffer.truncated:
                    await asyncio.sleep(DROP_PAUSE_SECONDS)
                buffer.add(message.data)

    async def drain_while(self, work: Coroutine[None, None, None]) -> None:
        """Await `work`, which ends the process, and read on until then: full pipes block the engine."""
        reading = asyncio.ensure_future(self._drain_quietly())
        try:
            await work
            await asyncio.wait({reading}, timeout=FINAL_OUTPUT_SECONDS)
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _drain_quietly(self) -> None:
        with contextlib.suppress(SandboxError):
            await self.drain()

    async def wait_started(self, seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until the process has started: engines report a running process before it has a pid."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(SandboxError), translate_errors():
            while time.monotonic() < deadline:
                details: dict[str, Any] = await self._execution.inspect()
                if details.get("Pid") or details.get("ExitCode") is not None:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def exit_code(self) -> int:
        """Return the exit code; engines report it a moment after the output's end."""
        deadline = time.monotonic() + _EXIT_TIMEOUT_SECONDS
        while True:
            with translate_errors():
                details: dict[str, Any] = await self._execution.inspect()
            if not details.get("Running") and details.get("ExitCode") is not None:
                return int(details["ExitCode"])
            if time.monotonic() > deadline:
                raise SandboxGone("the engine did not report the command's exit code")
            await asyncio.sleep(_POLL_SECONDS)

    async def disconnect(self) -> None:
        """End the connection and wait a short while until the process, which watches it, has ended too."""
        await self.close()
        with contextlib.suppress(SandboxError):
            await self.exit_code()

    async def close(self) -> None:
        """Release the connection."""
        await self._stream.close()

    def result(self, exit_code: int, *, timed_out: bool = False) -> ExecResult:
        """Return the result."""
        return ExecResult(
            exit_code=exit_code,
            stdout=bytes(self._out.content),
            stderr=bytes(self._error.content),
            timed_out=timed_out,
            stdout_truncated=self._out.truncated,
            stderr_truncated=self._error.truncated,
            duration_ms=int((time.monotonic() - self._started) * 1000),
        )


def output_cap(limit: int) -> int:
    """Return how many bytes of a run's output are kept."""
    return min(limit, OUTPUT_CAP)
