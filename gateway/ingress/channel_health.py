"""Receiver health: how long a channel has not received updates, and why; and when it is opened again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from channels.errors import ChannelError, RateLimited
from channels.port import ReceiverStatus
from gateway.ingress.channel_context import channel_identity
from gateway.store.accounts.records import Record

GRACE_SECONDS = 60.0
"""Seconds without a receiver before a channel is stalled; covers hand-overs and short outages."""

STEADY_SECONDS = 5.0
"""Seconds a receiver must last to count, because two pollers of one bot disconnect each other."""

RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OPERATOR_RETRY_DELAYS = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each retry: after a passing error, and after one that only an operator can fix."""

MAX_RETRY_AFTER = 3600.0
"""Seconds of a rate limit that are waited before the next attempt to open a channel."""

RECOVERED_SECONDS = 30.0
"""Seconds of receiving after which a failure counts as the first one again."""

log = structlog.get_logger(__name__)


class ReceiverHealth(ReceiverStatus):
    """The receiver health of one channel in this process; `clock` is a monotonic clock in seconds.

    The channel is open while this process receives, or while it stands by for a replica that receives.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open_at = self._changed_at = self._receiving_at = clock()
        self._received_seconds = 0.0
        self.is_receiving = False
        self.on_standby = False
        self.has_received = False
        self.reason = ""

    def __call__(self, is_receiving: bool, reason: str = "", /) -> None:  # noqa: FBT001 - the port's signature
        """Take whether updates arrive, and why they do not; a reason stays until they do."""
        self._update(is_receiving=is_receiving, on_standby=self.on_standby, reason=reason)

    def disconnected(self, reason: str = "") -> None:
        """Record that the receiver has ended."""
        self._update(is_receiving=False, on_standby=self.on_standby, reason=reason)

    def set_standby(self, *, on_standby: bool, reason: str = "") -> None:
        """Record whether another replica receives, or why that is unknown."""
        self._update(is_receiving=self.is_receiving, on_standby=on_standby, reason=reason)

    def take_received_seconds(self) -> float:
        """Return how long this process has received at a stretch, at most, since the last call."""
        taken, self._received_seconds = self._received_seconds, 0.0
        return taken

    @property
    def is_open(self) -> bool:
        """Return whether updates are received now, in this process or by another replica."""
        return self.is_receiving or self.on_standby

    @property
    def is_stalled(self) -> bool:
        """Return whether the channel has not been open steadily for more than GRACE_SECONDS."""
        return self._clock() - self._last_open() > GRACE_SECONDS

    def _last_open(self) -> float:
        now = self._clock()
        return now if self.is_open and now - self._changed_at >= STEADY_SECONDS else self._open_at

    def _update(self, *, is_receiving: bool, on_standby: bool, reason: str) -> None:
        was_open, self._open_at = self.is_open, self._last_open()
        if self.is_receiving:
            self._received_seconds = max(self._received_seconds, self._clock() - self._receiving_at)
        if is_receiving and not self.is_receiving:
            self._receiving_at = self._clock()
        self.is_receiving, self.on_standby = is_receiving, on_standby
        if self.is_open is not was_open:
            self._changed_at = self._clock()
        self.has_received = self.has_received or self.is_open
        self.reason = reason or self.reason


class ChannelRetries:
    """The failures of one channel since it last received for RECOVERED_SECONDS."""

    def __init__(self, channel: Record, *, operator_delays: Sequence[float] = OPERATOR_RETRY_DELAYS) -> None:
        self._channel = channel_identity(channel)
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
        if isinstance(error, RateLimited):
            wait = max(wait, min(error.retry_after, MAX_RETRY_AFTER))
        self._failures += 1
        text = repr(error)
        is_repeated, self._logged = text == self._logged, text
        if is_repeated:
            log.debug("channel.still_disconnected", **self._channel, error=str(error), retry_in=wait)
        elif isinstance(error, ChannelError):
            log.warning("channel.disconnected", **self._channel, error=str(error), retry_in=wait)
        else:
            log.error("channel.failed", **self._channel, exc_info=error)
        return wait


def _delay(failures: int, delays: Sequence[float]) -> float:
    return delays[min(failures, len(delays) - 1)]
