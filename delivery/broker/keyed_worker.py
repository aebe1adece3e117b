"""Rounds: answer wake-ups, one worker per key in this process, until told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from delivery.broker.port import WakeUp, WakeUps, WorkQueue
from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError, LeaseBusy

log = structlog.get_logger(__name__)

IN_PROGRESS_SECONDS = 10.0
"""Seconds between words to the broker that a key is still being looked after."""


class KeyedWorker:
    """Calls `work(key)` for each key that is signalled; a signal that comes meanwhile means once more.

    `work` raises Busy when another replica looks after the key, and any DeliveryError to be called again.
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
        """Return the keys being worked on here."""
        return frozenset(self._wake_again)

    async def run(self, stop: asyncio.Event) -> None:
        """Answer signals until stopped; work in progress is finished first (or ends by its own means)."""
        async with asyncio.TaskGroup() as group:
            async for signal in self._wake_ups.subscribe(self._queue, at_most=self._at_most, stop=stop):
                if signal.key in self._wake_again:
                    self._wake_again[signal.key] = True
                    await signal.ack()
                else:
                    self._wake_again[signal.key] = False
                    group.create_task(self._handle(signal))

    async def _handle(self, wake_up: WakeUp) -> None:
        key = wake_up.key
        keeper = asyncio.create_task(_report_in_progress(wake_up))
        try:
            await self._work(key)
            await wake_up.ack()
        except LeaseBusy:
            await wake_up.nak(0.5)
        except (DeliveryError, DatabaseUnavailable, OSError) as error:
            log.warning("worker.retrying", queue=str(self._queue), key=key, error=str(error))
            await wake_up.nak(1.0)
        except Exception:  # the outermost loop of a key: the others must go on
            log.exception("worker.failed", queue=str(self._queue), key=key)
            await wake_up.nak(5.0)
        finally:
            keeper.cancel()
            if self._wake_again.pop(key, False):
                self._wake(self._queue, key)


async def _report_in_progress(wake_up: WakeUp) -> None:
    with suppress(DeliveryError, OSError):
        while True:
            await asyncio.sleep(IN_PROGRESS_SECONDS)
            await wake_up.in_progress()
