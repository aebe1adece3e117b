"""A real gateway in a child process: started, killed, started again on its data directory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from commands import PIPE, STDOUT, Running, gateway_command
from leftovers import watch_jobs_of
from log_accounts import lines_without_account
from migrated import migrated_data_directory
from session import running

ADDRESS = re.compile(r"^console: (http://[^/\s]+)")
ANSI_CODES = re.compile(r"\x1b\[[0-9;]*m")

LAST_LINES = 200
"""How much of the log of each of its gateways a test shows when it fails."""

_started: list[GatewayProcess] = []

NOT_INHERITED = ("DOVECOTE_", "PYTHONDONTWRITEBYTECODE")
"""Settings come from the test; and modules are compiled once, as on anybody's machine."""


def channel_env(kind: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a channel's settings as the environment of a gateway."""
    return {
        f"DOVECOTE_CHANNELS__{kind.upper()}__{name.upper()}": value
        if isinstance(value, str)
        else json.dumps(value)
        for name, value in settings.items()
    }


def reserve_port() -> int:
    """Return a free port that the kernel gives to no connection, so that it is free again after a kill."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class GatewayProcess:
    """`dovecote serve` on a data directory; `url` and `key` once it is ready.

    `started` asks for the real command line where a forked process would do, and for a first start that
    migrates its database itself. `wrapper` are words before the command line, such as those of `unshare`.
    """

    def __init__(
        self,
        data: Path,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        port: int = 0,
        started: bool = False,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.wrapper = wrapper
        self.env = dict(env or {})
        self.options = list(options)
        self.port = port
        self.started = started
        self.url = ""
        self.log: list[str] = []
        self.ready = asyncio.Event()
        self._child: Running | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        """The default account's key."""
        return (self.data / "key").read_text().strip()

    @property
    def pid(self) -> int:
        """The process id of the running gateway."""
        assert self._child is not None
        return self._child.pid

    async def start(self, *, env: Mapping[str, str] | None = None, wait: bool = True) -> Self:
        """Start (again) on the same data directory, on the port it had; waits until it is ready."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        self.ready.clear()
        if self not in _started:
            _started.append(self)
        if not self.started and self._has_own_database({**self.env, **(env or {})}):
            await migrated_data_directory(self.data)
        self.port = self.port or reserve_port()
        self._child = await gateway_command(
            *("serve", "--data", str(self.data), "--port", str(self.port), *self.options),
            env={**kept, **self.env, **(env or {})},
            cwd=self.data.parent,
            stdout=PIPE,
            stderr=STDOUT,
            limit=1 << 20,
            started=self.started,
            wrapper=self.wrapper,
        )
        watch_jobs_of(self.data, lambda child=self._child: child.returncode is not None)  # type: ignore[misc]
        self._reader = asyncio.create_task(self._read(self._child))
        if wait:
            await self.until_ready()
        return self

    def _has_own_database(self, env: Mapping[str, str]) -> bool:
        """Return whether the first start creates a SQLite file in the data directory."""
        is_named = any("DATABASE" in name.upper() for name in [*env, *self.options])
        return running() and not self.data.exists() and not is_named

    async def until_ready(self, timeout: float = 60.0) -> None:
        """Wait for the `ready` line; a gateway that ends before it is an error with its log."""
        assert self._reader is not None
        waiting = asyncio.create_task(self.ready.wait())
        await asyncio.wait({waiting, self._reader}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not self.ready.is_set():
            raise AssertionError("the gateway did not become ready:\n" + "\n".join(self.log[-40:]))
        self.port = int(self.url.rsplit(":", 1)[1])

    async def _read(self, child: Running) -> None:
        assert child.stdout is not None
        async for raw in child.stdout:
            line = ANSI_CODES.sub("", raw.decode(errors="replace")).rstrip()
            self.log.append(line)
            found = ADDRESS.search(line)
            if found:
                self.url = found.group(1)
                self.ready.set()

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal (kill -9 by default) and wait for the end; returns the exit code."""
        assert self._child is not None
        if self._child.returncode is None:
            self._child.send_signal(number)
        return await self.wait_for_exit()

    async def wait_for_exit(self, timeout: float = 30.0) -> int:
        """Wait until the process has ended (at a fault point, or by a signal); returns the exit code."""
        assert self._child is not None
        assert self._reader is not None
        async with asyncio.timeout(timeout):
            code = await self._child.wait()
            await self._reader
        return code

    async def stop(self) -> None:
        """End it politely, or at once when it does not."""
        if self._child is None or self._child.returncode is not None:
            return
        try:
            await self.kill(signal.SIGTERM)
        except TimeoutError:
            await self.kill()

    @asynccontextmanager
    async def http(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Open a session that talks to it as the default account."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(self.url, headers=headers) as session:
            yield session

    async def events(self, conversation: str, *, after: int = 0) -> list[dict[str, Any]]:
        """Return what the stream holds of a conversation."""
        async with self.http() as session:
            query = {"after": str(after), "limit": "500"}
            async with session.get(f"/conversations/{conversation}/events", params=query) as answer:
                assert answer.status == 200, await answer.text()
                return list((await answer.json())["items"])


def last_logs() -> Iterator[tuple[str, str]]:
    """Yield the title and the end of the log of each gateway of the present test."""
    for process in _started:
        yield f"log of the gateway {process.data}", "\n".join(process.log[-LAST_LINES:])


def unattributed_lines() -> Sequence[str]:
    """Return the log lines of the present test's gateways that name an object and not its account."""
    return lines_without_account(line for process in _started for line in process.log)


def discard_logs() -> None:
    """Forget the gateways of a test that has ended."""
    _started.clear()


@asynccontextmanager
async def gateway(
    data: Path,
    *,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    port: int = 0,
    started: bool = False,
    wrapper: Sequence[str] = (),
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway for a test."""
    process = GatewayProcess(data, env=env, options=options, port=port, started=started, wrapper=wrapper)
    try:
        yield await process.start()
    finally:
        await process.stop()
