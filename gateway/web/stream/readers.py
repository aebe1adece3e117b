"""The registry of open stream connections, which closes those of keys that may not read them any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

import structlog
from aiohttp import web

from delivery.background import log_errors
from delivery.database.engine import DatabaseUnavailable
from gateway.accounts.api_keys import Principal
from gateway.config.sign_in_settings import KeyScope
from gateway.web.http.context import WebContext
from gateway.web.http.problems import HttpProblem

_log = structlog.get_logger(__name__)

KEY_CHECK_SECONDS = 2.0
KEY_REVOKED = "the key was revoked"
SCOPES_REDUCED = "the scopes of the key were reduced"

LiveScopes = Callable[[Collection[str]], Awaitable[Mapping[str, frozenset[str]]]]
"""Return the scopes of those keys, by id, that are still valid."""


class StreamReader:
    """An open stream connection: its principal, the scope it needs, and why it is closed.

    Without a `scope` it needs all scopes that its principal has.
    """

    __slots__ = ("closed", "code", "principal", "reason", "scope")

    def __init__(self, principal: Principal | None, scope: KeyScope | None = None) -> None:
        self.principal = principal
        self.scope = scope
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.code = 1000
        self.reason = ""

    @property
    def is_revoked(self) -> bool:
        """Whether it is closed because its key is not valid any more."""
        return self.reason == KEY_REVOKED

    @property
    def is_reduced(self) -> bool:
        """Whether it is closed because its key has lost a scope that it needs."""
        return self.reason == SCOPES_REDUCED

    def is_allowed_by(self, scopes: frozenset[str]) -> bool:
        """Return whether a key with these scopes may keep the connection."""
        if self.scope is not None:
            return self.scope in scopes
        return self.principal is None or self.principal.scopes <= scopes

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
    """The open stream connections of this process.

    It closes those whose key is revoked or has lost a scope that they need, and all when it stops.
    """

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
    def register(
        self, principal: Principal | None, *, scope: KeyScope | None = None
    ) -> Iterator[StreamReader]:
        """Register a connection while it is open; raises HttpProblem 503 when the gateway stops.

        It needs this `scope`; None: all scopes that its principal has.
        """
        if self._closing:
            raise HttpProblem(503, "the gateway is stopping", headers={"Retry-After": "1"})
        reader = StreamReader(principal, scope)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.discard(reader)

    def close_for_key(self, key: str) -> None:
        """Close the connections of a key that is no longer valid."""
        for reader in self._of_key(key):
            reader.close(4401, KEY_REVOKED)

    def close_beyond(self, key: str, scopes: frozenset[str]) -> None:
        """Close the connections of a key that need a scope which it does not have any more."""
        for reader in self._of_key(key):
            if not reader.is_allowed_by(scopes):
                reader.close(4403, SCOPES_REDUCED)

    def _of_key(self, key: str) -> Iterator[StreamReader]:
        return (one for one in self._open if one.principal is not None and one.principal.key == key)

    async def close_all(self, _application: object = None) -> None:
        """Close every connection because the gateway stops."""
        self._closing = True
        for reader in self._open:
            reader.close(1012, "the gateway is restarting")

    async def run(self, live_scopes: LiveScopes, stop: asyncio.Event) -> None:
        """Check regularly the keys in use; another replica may have revoked them or reduced their scopes."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await stop.wait()
            with log_errors("api_keys.check"):
                try:
                    await self.check_keys(live_scopes)
                except DatabaseUnavailable:
                    _log.debug("api_key.check_failed")

    async def check_keys(self, live_scopes: LiveScopes) -> None:
        """Close the connections of keys that may not have them any more; all keys are checked together."""
        in_use = {reader.principal.key for reader in self._open if reader.principal is not None}
        if in_use:
            live = await live_scopes(in_use)
            for key in in_use - live.keys():
                self.close_for_key(key)
            for key, scopes in live.items():
                self.close_beyond(key, scopes)

    async def running(self, live_scopes: LiveScopes) -> AsyncIterator[None]:
        """Run the key checks while an application runs (for `cleanup_ctx`)."""
        stop = asyncio.Event()
        watching = asyncio.create_task(self.run(live_scopes, stop))
        yield
        stop.set()
        await watching


READERS = web.AppKey("readers", StreamReaders)


def install(application: web.Application, context: WebContext) -> StreamReaders:
    """Track an application's stream connections, and close them when it stops."""
    readers = application[READERS] = StreamReaders()
    context.api_key_authenticator.on_revoked.append(readers.close_for_key)
    context.api_key_authenticator.on_scopes.append(readers.close_beyond)
    application.on_shutdown.append(readers.close_all)
    application.cleanup_ctx.append(
        lambda _application: readers.running(context.api_key_authenticator.live_scopes)
    )
    return readers
