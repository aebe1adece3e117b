"""What the stream's readers may ask of the gateway, and everybody who reads at the moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from delivery.database.engine import Unavailable
from delivery.events.port import Stream
from gateway.accounts.api_keys import Principal
from gateway.web.http.problems import Problem
from gateway.web.stream.frames import Approve, Cancel, Send

_log = logging.getLogger(__name__)

CHECK_KEYS_EVERY = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of something said."""

    turn: str
    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readership:
    """The doors behind a socket. Those that obey raise `frames.Mistaken`, `authenticate` a Problem."""

    stream: Stream
    authenticate: Callable[[web.Request, str], Awaitable[Principal]]
    still_valid: Callable[[Principal], Awaitable[bool]]
    find_conversation: Callable[[Principal, str], Awaitable[str | None]]
    enter_conversation: Callable[[Principal, str], Awaitable[str | None]]
    submit: Callable[[Principal, Send], Awaitable[Accepted]]
    decide: Callable[[Principal, Approve], Awaitable[None]]
    cancel: Callable[[Principal, Cancel], Awaitable[None]]


class Reader:
    """One open connection: who reads, and how it is told to end."""

    __slots__ = ("code", "ended", "principal", "reason")

    def __init__(self, principal: Principal | None) -> None:
        self.principal = principal
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.code = 1000
        self.reason = ""

    def end(self, code: int, reason: str) -> None:
        """Ask the connection to end; the first reason counts."""
        if not self.ended.done():
            self.code, self.reason = code, reason
            self.ended.set_result(None)


class Readers:
    """All open connections of this process; cuts those whose key is gone, and all at the end."""

    def __init__(self) -> None:
        self._open: set[Reader] = set()
        self._closing = False

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def codes(self) -> set[int]:
        """Return the codes with which connections are being closed."""
        return {reader.code for reader in self._open if reader.ended.done()}

    @contextmanager
    def admitted(self, principal: Principal | None) -> Iterator[Reader]:
        """Know of a connection while it lasts; raises a Problem when the gateway stops."""
        if self._closing:
            raise Problem(503, "the gateway is stopping", headers={"Retry-After": "1"})
        reader = Reader(principal)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.discard(reader)

    def revoked(self, key: str) -> None:
        """Cut everybody who reads with a key that is no longer valid."""
        for reader in self._open:
            if reader.principal is not None and reader.principal.key == key:
                reader.end(4401, "the key was revoked")

    async def shut(self, _application: object = None) -> None:
        """Cut everybody: the gateway stops."""
        self._closing = True
        for reader in self._open:
            reader.end(1012, "the gateway restarts")

    async def watch(self, still_valid: Callable[[Principal], Awaitable[bool]], stop: asyncio.Event) -> None:
        """Look now and then whether the keys in use are still valid (another replica may revoke them)."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_KEYS_EVERY):
                    await stop.wait()
            for principal in {reader.principal for reader in self._open if reader.principal is not None}:
                await self._check(principal, still_valid)

    async def _check(self, principal: Principal, still_valid: Callable[[Principal], Awaitable[bool]]) -> None:
        try:
            if not await still_valid(principal):
                self.revoked(principal.key)
        except Unavailable:
            _log.debug("cannot look whether a key is still valid")

    async def watched(self, still_valid: Callable[[Principal], Awaitable[bool]]) -> AsyncIterator[None]:
        """Watch while an application runs (for `cleanup_ctx`)."""
        stop = asyncio.Event()
        watching = asyncio.create_task(self.watch(still_valid, stop))
        yield
        stop.set()
        await watching
