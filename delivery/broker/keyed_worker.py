"""Handle the wake-ups of one queue, with at most one call per key in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from delivery.background import log_errors
from delivery.broker.port import WakeUp, WakeUps, WorkQueue
from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError, LeaseBusy

log = structlog.get_logger(__name__)

IN_PROGRESS_SECONDS = 10.0
"""Seconds between reports to the broker that a key is still in progress."""


class KeyedWorker:
    """Runs `work(key)` for every wake-up, at most one call per key at a time.

    A wake-up that arrives during a call triggers one more call. `work` raises LeaseBusy when another replica
    works on the key. After any other error the wake-up is redelivered.
    """

    def __init__(
        self,
        queue: WorkQueue,
        wake_ups: WakeUps,
        work: Callable[[str], Awaitable[None]],
        *,
        wake: Callable[[WorkQueue, str], None],
        at_most: int,
    ) -> None:
        self._queue = queue
        self._wake_ups = wake_ups
        self._work = work
        self._wake = wake
        self._at_most = at_most
        self._wake_again: dict[str, bool] = {}

    def active_keys(self) -> frozenset[str]:
        """Return the keys that this process works on now."""
        return frozenset(self._wake_again)

    async def run(self, stop: asyncio.Event) -> None:
        """Handle wake-ups until `stop`; then wait for the calls in progress."""
        async with asyncio.TaskGroup() as group:
            async for wake_up in self._wake_ups.subscribe(self._queue, at_most=self._at_most, stop=stop):
                if wake_up.key in self._wake_again:
                    self._wake_again[wake_up.key] = True
                    await wake_up.ack()
                else:
                    self._wake_again[wake_up.key] = False
                    group.create_task(self._handle(wake_up))

    async def _handle(self, wake_up: WakeUp) -> None:
        key = wake_up.key
        reporting = asyncio.create_task(_report_in_progress(wake_up))
        try:
            await self._work(key)
            await wake_up.ack()
        except LeaseBusy:
            await wake_up.nak(0.5)
        except (DeliveryError, DatabaseUnavailable, OSError) as error:
            log.warning("worker.retrying", queue=str(self._queue), key=key, error=str(error))
            await wake_up.nak(1.0)
        except Exception:  # the outermost loop of a key: other keys must continue
            log.exception("worker.failed", queue=str(self._queue), key=key)
            await wake_up.nak(5.0)
        finally:
            reporting.cancel()
            if self._wake_again.pop(key, False):
                self._wake(self._queue, key)


async def _report_in_progress(wake_up: WakeUp) -> None:
    while True:
        await asyncio.sleep(IN_PROGRESS_SECONDS)
        with log_errors("worker.in_progress", key=wake_up.key):
            await wake_up.in_progress()
