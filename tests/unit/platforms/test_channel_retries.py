"""A channel that fails is opened again more and more slowly, until it has received for a while."""

from __future__ import annotations

from structlog.testing import capture_logs

from channels.errors import RateLimited, Unauthorized, Unreachable
from delivery.database.clock import utc_now
from gateway.ingress.channel_health import (
    MAX_RETRY_AFTER,
    OPERATOR_RETRY_DELAYS,
    RECOVERED_SECONDS,
    RETRY_DELAYS,
    ChannelRetries,
    ReceiverHealth,
)
from gateway.store.accounts.records import Record

BOT = Record(
    id="chn_1",
    account="acc_1",
    kind="channel",
    name="bot",
    config={},
    created_at=utc_now(),
    updated_at=utc_now(),
)


def test_delays_grow_until_the_channel_has_received() -> None:
    """A short time of receiving between two failures changes nothing."""
    retries, refused = ChannelRetries(BOT), Unauthorized("the intents are refused")
    short = RECOVERED_SECONDS / 2
    waits = [retries.record(refused, received_seconds=short) for _ in range(7)]
    assert waits == [*OPERATOR_RETRY_DELAYS, OPERATOR_RETRY_DELAYS[-1], OPERATOR_RETRY_DELAYS[-1]]
    assert retries.record(refused, received_seconds=RECOVERED_SECONDS) == OPERATOR_RETRY_DELAYS[0]
    assert retries.record(Unreachable("no route"), received_seconds=short) == RETRY_DELAYS[1]


def test_a_rate_limit_is_waited_for() -> None:
    """A channel is not opened before the time that the platform states, and after an hour at the latest."""
    retries = ChannelRetries(BOT)
    waits = [retries.record(RateLimited(seconds), received_seconds=0.0) for seconds in (8.0, 0.0, 1e9)]
    assert waits == [8.0, RETRY_DELAYS[1], MAX_RETRY_AFTER]


def test_an_error_that_stays_the_same_is_logged_once() -> None:
    """Another error, and the same one after the channel has received, are logged as warnings."""
    retries = ChannelRetries(BOT)
    with capture_logs() as logs:
        for text, received in (("a", 0.0), ("a", 0.0), ("b", 0.0), ("b", RECOVERED_SECONDS), ("b", 0.0)):
            retries.record(Unauthorized(text), received_seconds=received)
        retries.record(ValueError("a defect"), received_seconds=0.0)
    levels = [line["log_level"] for line in logs]
    assert levels == ["warning", "debug", "warning", "warning", "debug", "error"]


def test_health_measures_how_long_a_receiver_received() -> None:
    """The longest time counts, once."""
    now = 0.0
    health = ReceiverHealth(lambda: now)
    for seconds in (5.0, 40.0, 2.0):
        health(True)
        now += seconds
        health(False, "interrupted")
        now += 100.0
    assert (health.take_received_seconds(), health.take_received_seconds()) == (40.0, 0.0)
