"""Report whether the connections of one bot receive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from channels.port import ReceiverStatus

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between attempts while a platform or a channel's state cannot be reached."""

_Value = TypeVar("_Value")

log = structlog.get_logger(__name__)


class CombinedStatus:
    """Reports that updates arrive when they arrive by every connection."""

    def __init__(self, connections: int, receiving: ReceiverStatus) -> None:
        self._interrupted = set(range(connections))
        self._receiving = receiving

    def of(self, connection: int) -> ReceiverStatus:
        """Return the callback of one connection."""

        def report(is_receiving: bool, reason: str = "", /) -> None:  # noqa: FBT001 - the port's signature
            (self._interrupted.discard if is_receiving else self._interrupted.add)(connection)
            if not (is_receiving and self._interrupted):
                self._receiving(is_receiving, reason)

        return report


async def until_read(read: Callable[[], Awaitable[_Value]], receiving: ReceiverStatus) -> _Value:
    """Return what is read from the channel's state, again and again while its store is down."""
    failures = 0
    while True:
        try:
            return await read()
        except Exception as error:  # noqa: BLE001 - any error of the state's store
            log.warning("channel.state_read_failed", error=repr(error))
            receiving(False, "the channel's state cannot be read")  # noqa: FBT003 - the port's signature
        await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
        failures += 1
