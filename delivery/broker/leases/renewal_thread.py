"""An event loop in a thread, with its own connection, that renews leases while the main loop is late.

A main loop that is blocked for good must not keep its leases. So it reports that it runs, and the renewals
stop when it has not done so for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from delivery.background import log_errors
from delivery.broker.connection import NatsConnection, connect

MAX_LAG_SECONDS = 60.0
"""How late the main loop may be before its leases are left to others."""
_BEAT_SECONDS = 1.0


class RenewalThread:
    """Runs coroutines in the thread's event loop; opened by `renewal_thread`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="renewals", daemon=True)
        self._beat = monotonic()
        self.connection: NatsConnection

    @property
    def main_loop_runs(self) -> bool:
        """Return whether the main loop has run lately."""
        return monotonic() - self._beat < MAX_LAG_SECONDS

    def submit(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Run a coroutine in the thread; the future belongs to the caller's loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread soon."""
        self._loop.call_soon_threadsafe(function)

    async def report_beats(self) -> None:
        """Report that the main loop runs, until cancelled."""
        while True:
            with log_errors("renewals.beat"):
                self._beat = monotonic()
            await asyncio.sleep(_BEAT_SECONDS)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; all that runs in it has ended."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def hold_connection(self, url: str, opened: Callable[[], object], closing: asyncio.Event) -> None:
        """Open the connection in the thread, report that, and close it when `closing` is set there."""
        async with connect(url, name="dovecote renewals") as self.connection:
            opened()
            await closing.wait()


@asynccontextmanager
async def renewal_thread(url: str) -> AsyncIterator[RenewalThread]:
    """Run a thread with a connection to `url` until the block ends; raises like `connect`."""
    thread, main_loop = RenewalThread(), asyncio.get_running_loop()
    is_open, closing = asyncio.Event(), asyncio.Event()
    thread.start()
    try:
        holding = thread.submit(
            thread.hold_connection(url, lambda: main_loop.call_soon_threadsafe(is_open.set), closing)
        )
        opening: asyncio.Future[bool] = asyncio.ensure_future(is_open.wait())
        waited: set[asyncio.Future[Any]] = {opening, holding}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if holding.done():
            holding.result()
        beating = asyncio.create_task(thread.report_beats())
        try:
            yield thread
        finally:
            beating.cancel()
            thread.call(closing.set)
            await asyncio.wait({holding})
    finally:
        await thread.stop()
