"""The gateway's command line in a process of its own: forked from the zygote of the test run, or started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import session
from delivery.background import run_shielded
from gateway.config.load import environment_without_ours

MODULE = "gateway"
PIPE, STDOUT, DEVNULL = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT, asyncio.subprocess.DEVNULL
ONLY_AT_START = ("PYTHON", "OTEL_", "LD_")
"""Variables that work while the interpreter starts or imports: with others than ours, nothing is forked."""


class Forked:
    """A process that the zygote forked, with the face of `asyncio.subprocess.Process`."""

    def __init__(self, limit: int) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._limit = limit
        self._transports: list[asyncio.BaseTransport] = []
        self._ending: asyncio.Task[None] | None = None

    async def start(
        self, order: Mapping[str, Any], *, stdin: int | None, stdout: int | None, stderr: int | None
    ) -> Self:
        """Have it forked, with these as its standard input, output and errors."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(session.zygote())
        with ExitStack() as ours:
            given = await self._input(stdin, ours)
            output, self.stdout = await self._output(1, stdout, ours)
            errors, self.stderr = (output, None) if stderr == STDOUT else await self._output(2, stderr, ours)
            line = json.dumps(dict(order)).encode() + b"\n"
            sent = socket.send_fds(connection, [line], [given, output, errors])
            connection.sendall(line[sent:])
        reader, writer = await asyncio.open_connection(sock=connection)
        self._transports.append(writer.transport)
        self.pid = int(await reader.readline())
        self._ending = asyncio.create_task(self._until_ended(reader, writer))
        return self

    async def _input(self, wanted: int | None, ours: ExitStack) -> int:
        if wanted != PIPE:
            return 0 if wanted is None else _nothing(ours)
        theirs, mine = os.pipe()
        ours.callback(os.close, theirs)
        transport, protocol = await asyncio.get_running_loop().connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(mine, "wb", 0)
        )
        self.stdin = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
        self._transports.append(transport)
        return theirs

    async def _output(
        self, number: int, wanted: int | None, ours: ExitStack
    ) -> tuple[int, asyncio.StreamReader | None]:
        if wanted != PIPE:
            return (number if wanted is None else _nothing(ours)), None
        mine, theirs = os.pipe()
        ours.callback(os.close, theirs)
        reader = asyncio.StreamReader(limit=self._limit)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), cast("BinaryIO", os.fdopen(mine, "rb", 0))
        )
        self._transports.append(transport)
        return theirs, reader

    async def _until_ended(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wait for the exit code; a test that ends earlier ends the process with it."""
        try:
            code = await reader.readline()
            self.returncode = int(code) if code else -signal.SIGKILL
        except asyncio.CancelledError:
            for transport in self._transports:
                transport.close()
            raise
        finally:
            writer.close()

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        assert self._ending is not None
        await run_shielded(self._ending)
        assert self.returncode is not None
        return self.returncode

    async def communicate(self, given: bytes | None = None) -> tuple[bytes, bytes]:
        """Write all of its input, and return what it prints until its end."""

        async def read(stream: asyncio.StreamReader | None) -> bytes:
            return b"" if stream is None else await stream.read()

        printing = asyncio.gather(read(self.stdout), read(self.stderr))
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.stdin.write(given or b"")
                await self.stdin.drain()
            self.stdin.close()
        printed = await printing
        await self.wait()
        return printed

    def send_signal(self, number: int) -> None:
        """Send a signal; a process that has ended is a ProcessLookupError."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


Running = asyncio.subprocess.Process | Forked


def _nothing(ours: ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDWR)
    ours.callback(os.close, descriptor)
    return descriptor


def can_be_forked(env: Mapping[str, str]) -> bool:
    """Return whether a process with this environment can be forked instead of started."""
    if not session.running():
        return False

    def early(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(ONLY_AT_START)}

    return early(env).items() <= early(os.environ).items()


async def gateway_command(
    *words: str,
    env: Mapping[str, str],
    cwd: Path,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    limit: int = 1 << 16,
    started: bool = False,
    wrapper: Sequence[str] = (),
) -> Running:
    """Run `python -m gateway`; `started` asks for the real command line, and `wrapper` precedes it."""
    if not started and not wrapper and can_be_forked(env):
        order = {"module": MODULE, "words": words, "env": dict(env), "cwd": str(cwd)}
        return await Forked(limit).start(order, stdin=stdin, stdout=stdout, stderr=stderr)
    return await asyncio.create_subprocess_exec(
        *(*wrapper, sys.executable, "-m", MODULE, *words),
        env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, limit=limit,
        preexec_fn=_restore_signals,
    )  # fmt: skip


async def run_to_end(*words: str, cwd: Path, **settings: str) -> tuple[int | None, str, str]:
    """Run a command that needs no input; returns its exit code, its output and its errors."""
    env = environment_without_ours() | settings
    child = await gateway_command(*words, env=env, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        output, errors = await child.communicate()
    return child.returncode, output.decode(), errors.decode()


def _restore_signals() -> None:
    """Undo what a shell and `nohup` do to what they run: such children ignore Ctrl-C and SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
