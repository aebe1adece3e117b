"""Pauses between attempts to receive, and the report of the receiver's status."""

from __future__ import annotations

import asyncio

import structlog

from channels.errors import ChannelError, RateLimited
from channels.port import ReceiverStatus
from channels.receiving.status import BACKOFF_SECONDS

RECEIVING, INTERRUPTED = True, False

log = structlog.get_logger(__name__)


class Backoff:
    """Waits between failures; raises an error that only an operator can fix."""

    def __init__(self, receiving: ReceiverStatus) -> None:
        self._receiving = receiving
        self.failures = 0
        self.is_receiving = False

    def receiving(self, is_receiving: bool, reason: str = "") -> None:  # noqa: FBT001 - as ReceiverStatus
        """Report whether updates arrive, and remember it."""
        self.is_receiving = is_receiving
        self._receiving(is_receiving, reason) if reason else self._receiving(is_receiving)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self.failures = 0

    async def back_off(self, error: ChannelError) -> None:
        """Wait before the next attempt, unless only an operator can help."""
        if error.remedy == "operator":
            raise error
        await self.wait_after(error)

    async def wait_after(self, error: ChannelError) -> None:
        """Wait before the next attempt, whatever the error is."""
        self.receiving(INTERRUPTED, str(error))
        log.warning("channel.receiving_interrupted", error=str(error))
        if isinstance(error, RateLimited):
            await asyncio.sleep(error.retry_after)
            self.failures += 1
        else:
            await self.pause()

    async def pause(self) -> None:
        """Wait for a time that grows with the failures so far."""
        await asyncio.sleep(BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS) - 1)])
        self.failures += 1
