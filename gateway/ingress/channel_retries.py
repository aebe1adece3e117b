"""When a channel that failed is opened again, and how its errors are logged."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from channels.errors import ChannelError

RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OPERATOR_RETRY_DELAYS = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each retry: after a passing error, and after one that only an operator can fix."""

RECOVERED_SECONDS = 30.0
"""Seconds of receiving after which a failure counts as the first one again."""

log = structlog.get_logger(__name__)


class ChannelRetries:
    """The failures of one channel since it last received for RECOVERED_SECONDS."""

    def __init__(self, channel: str, *, operator_delays: Sequence[float] = OPERATOR_RETRY_DELAYS) -> None:
        self._channel = channel
        self._operator_delays = operator_delays
        self._failures = 0
        self._logged = ""

    def record(self, error: Exception, *, received_seconds: float) -> float:
        """Log a failure, a repeated one at debug level; return the seconds to wait before the retry.

        `received_seconds` is how long the channel has received since the failure before.
        """
        if received_seconds >= RECOVERED_SECONDS:
            self._failures, self._logged = 0, ""
        is_operators = isinstance(error, ChannelError) and error.remedy == "operator"
        wait = _delay(self._failures, self._operator_delays if is_operators else RETRY_DELAYS)
        self._failures += 1
        text = repr(error)
        is_repeated, self._logged = text == self._logged, text
        if is_repeated:
            log.debug("channel.still_disconnected", channel=self._channel, error=str(error), retry_in=wait)
        elif isinstance(error, ChannelError):
            log.warning("channel.disconnected", channel=self._channel, error=str(error), retry_in=wait)
        else:
            log.error("channel.failed", channel=self._channel, exc_info=error)
        return wait


def _delay(failures: int, delays: Sequence[float]) -> float:
    return delays[min(failures, len(delays) - 1)]
