"""The registry of open stream connections, which closes those of revoked keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress

import structlog
from aiohttp import web

from delivery.background import log_errors
from delivery.database.engine import DatabaseUnavailable
from gateway.accounts.api_keys import Principal
from gateway.web.http.context import WebContext
from gateway.web.http.problems import HttpProblem

_log = structlog.get_logger(__name__)

KEY_CHECK_SECONDS = 2.0
KEY_REVOKED = "the key was revoked"

ListValidKeys = Callable[[Collection[str]], Awaitable[set[str]]]
"""Return which keys, by id, are still valid."""


class StreamReader:
    """An open stream connection: its principal, and why it is closed."""

    __slots__ = ("closed", "code", "principal", "reason")

    def __init__(self, principal: Principal | None) -> None:
        self.principal = principal
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.code = 1000
        self.reason = ""

    @property
    def is_revoked(self) -> bool:
        """Whether it is closed because its key is not valid any more."""
        return self.reason == KEY_REVOKED

    def close(self, code: int, reason: str) -> None:
        """Request that the connection closes; the first reason counts."""
        if not self.closed.done():
            self.code, self.reason = code, reason
            self.closed.set_result(None)

    @contextmanager
    def limited_to(self, seconds: float | None) -> Iterator[None]:
        """Close the connection after so many seconds, when its ticket expires; None has no limit."""
        if seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(seconds, self.close, 1000, "the ticket has expired")
        try:
            yield
        finally:
            timer.cancel()


class StreamReaders:
    """The open stream connections of this process; closes those with a revoked key, and all when it stops."""

    def __init__(self, *, interval: float = KEY_CHECK_SECONDS) -> None:
        self._interval = interval
        self._open: set[StreamReader] = set()
        self._closing = False

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def close_codes(self) -> set[int]:
        """Return the codes with which connections are being closed."""
        return {reader.code for reader in self._open if reader.closed.done()}

    @contextmanager
    def register(self, principal: Principal | None) -> Iterator[StreamReader]:
        """Register a connection while it is open; raises HttpProblem 503 when the gateway stops."""
        if self._closing:
            raise HttpProblem(503, "the gateway is stopping", headers={"Retry-After": "1"})
        reader = StreamReader(principal)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.discard(reader)

    def close_for_key(self, key: str) -> None:
        """Close the connections of a key that is no longer valid."""
        for reader in self._open:
            if reader.principal is not None and reader.principal.key == key:
                reader.close(4401, KEY_REVOKED)

    async def close_all(self, _application: object = None) -> None:
        """Close every connection because the gateway stops."""
        self._closing = True
        for reader in self._open:
            reader.close(1012, "the gateway is restarting")

    async def run(self, list_valid: ListValidKeys, stop: asyncio.Event) -> None:
        """Check regularly that the keys in use are valid; another replica may have revoked them."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await stop.wait()
            with log_errors("api_keys.check"):
                try:
                    await self.check_keys(list_valid)
                except DatabaseUnavailable:
                    _log.debug("api_key.check_failed")

    async def check_keys(self, list_valid: ListValidKeys) -> None:
        """Close the connections of keys that are no longer valid; all keys are checked together."""
        in_use = {reader.principal.key for reader in self._open if reader.principal is not None}
        if in_use:
            for key in in_use - await list_valid(in_use):
                self.close_for_key(key)

    async def running(self, list_valid: ListValidKeys) -> AsyncIterator[None]:
        """Run the key checks while an application runs (for `cleanup_ctx`)."""
        stop = asyncio.Event()
        watching = asyncio.create_task(self.run(list_valid, stop))
        yield
        stop.set()
        await watching


READERS = web.AppKey("readers", StreamReaders)


def install(application: web.Application, context: WebContext) -> StreamReaders:
    """Track an application's stream connections, and close them when it stops."""
    readers = application[READERS] = StreamReaders()
    context.api_key_authenticator.on_revoked.append(readers.close_for_key)
    application.on_shutdown.append(readers.close_all)
    application.cleanup_ctx.append(
        lambda _application: readers.running(context.api_key_authenticator.list_valid)
    )
    return readers
