"""Rounds: answer wake-ups, one worker per key in this process, until told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from delivery.broker.port import Queue, Signal, Signals
from delivery.database.engine import Unavailable
from delivery.errors import Busy, DeliveryError

log = structlog.get_logger(__name__)

WORKING_EVERY = 10.0
"""Seconds between words to the broker that a key is still being looked after."""


class Rounds:
    """Calls `work(key)` for each key that is signalled; a signal that comes meanwhile means once more.

    `work` raises Busy when another replica looks after the key, and any DeliveryError to be called again.
    """

    def __init__(
        self,
        queue: Queue,
        signals: Signals,
        work: Callable[[str], Awaitable[None]],
        *,
        wake: Callable[[Queue, str], None],
        at_most: int,
    ) -> None:
        self._queue = queue
        self._signals = signals
        self._work = work
        self._wake = wake
        self._at_most = at_most
        self._again: dict[str, bool] = {}

    def busy(self) -> frozenset[str]:
        """Return the keys being worked on here."""
        return frozenset(self._again)

    async def run(self, stop: asyncio.Event) -> None:
        """Answer signals until stopped; work in progress is finished first (or ends by its own means)."""
        async with asyncio.TaskGroup() as group:
            async for signal in self._signals.listen(self._queue, at_most=self._at_most, stop=stop):
                if signal.key in self._again:
                    self._again[signal.key] = True
                    await signal.done()
                else:
                    self._again[signal.key] = False
                    group.create_task(self._answer(signal))

    async def _answer(self, signal: Signal) -> None:
        key = signal.key
        keeper = asyncio.create_task(_keep_working(signal))
        try:
            await self._work(key)
            await signal.done()
        except Busy:
            await signal.later(0.5)
        except (DeliveryError, Unavailable, OSError) as error:
            log.warning("rounds.interrupted", queue=str(self._queue), key=key, error=str(error))
            await signal.later(1.0)
        except Exception:  # the outermost loop of a key: the others must go on
            log.exception("rounds.failed", queue=str(self._queue), key=key)
            await signal.later(5.0)
        finally:
            keeper.cancel()
            if self._again.pop(key, False):
                self._wake(self._queue, key)


async def _keep_working(signal: Signal) -> None:
    with suppress(DeliveryError, OSError):
        while True:
            await asyncio.sleep(WORKING_EVERY)
            await signal.working()
