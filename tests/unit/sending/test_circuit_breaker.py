"""When an endpoint is left alone for a while, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.webhooks.circuit_breaker import CircuitBreakerSink, EndpointHealth

START = datetime(2026, 1, 1, tzinfo=UTC)
DELIVERED = Outcome(kind=OutcomeKind.DELIVERED)
FAILED = Outcome(kind=OutcomeKind.RETRY, detail="the receiver answered 500")


class ScriptedSink(Sink):
    """An endpoint that answers as it is told."""

    def __init__(self) -> None:
        self.outcome = FAILED

    async def send(self, delivery: Delivery) -> Outcome:
        """Answer."""
        return self.outcome


class MemoryEndpointHealth(EndpointHealth):
    """What the database would remember."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.writes = 0

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Keep the first failure."""
        self.since = self.since or now
        return self.since

    async def record_success(self, endpoint: str) -> None:
        """Forget it."""
        self.since = None
        self.writes += 1


class ManualClock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now


def _delivery() -> Delivery:
    return Delivery(
        id="dlv_1",
        account="acc_1",
        event_id="evt_1",
        event_type="agent.finished",
        event_time=START,
        conversation="cnv_1",
        kind="webhook",
        target="whk_1",
        part=0,
        body=b"{}",
        attempt=1,
    )


def _make_sink() -> tuple[CircuitBreakerSink, ScriptedSink, MemoryEndpointHealth, ManualClock]:
    receiver, rows, clock = ScriptedSink(), MemoryEndpointHealth(), ManualClock()
    sink = CircuitBreakerSink(
        receiver, health=rows, schedule=RetrySchedule(delays=(10, 100, 1000)), now=clock
    )
    return sink, receiver, rows, clock


async def test_five_failures_in_a_row_let_the_endpoint_rest() -> None:
    """Four failures are the deliveries' own affair; from the fifth on the endpoint waits, ever longer."""
    sink, _receiver, _rows, _clock = _make_sink()
    outcomes = [await sink.send(_delivery()) for _ in range(8)]
    assert [one.pause_destination for one in outcomes] == [False] * 4 + [True] * 4
    assert [one.retry_after for one in outcomes[4:]] == [5, 50, 500, 500]


async def test_a_success_closes_the_circuit() -> None:
    """After one success the count begins anew, and a healthy endpoint costs no write."""
    sink, receiver, rows, _clock = _make_sink()
    for _ in range(6):
        await sink.send(_delivery())
    receiver.outcome = DELIVERED
    for _ in range(3):
        assert await sink.send(_delivery()) == DELIVERED
    assert (rows.since, rows.writes) == (None, 1)
    receiver.outcome = FAILED
    assert not (await sink.send(_delivery())).pause_destination


async def test_an_endpoint_that_fails_for_five_days_is_disabled() -> None:
    """An hour before it is not; then it is, with the reason; a success in between starts the days anew."""
    sink, receiver, _rows, clock = _make_sink()
    await sink.send(_delivery())
    clock.now = START + timedelta(days=5, hours=-1)
    assert not (await sink.send(_delivery())).disable_endpoint
    receiver.outcome = DELIVERED
    await sink.send(_delivery())
    receiver.outcome = FAILED
    clock.now = START + timedelta(days=6)
    assert not (await sink.send(_delivery())).disable_endpoint
    clock.now = START + timedelta(days=11)
    outcome = await sink.send(_delivery())
    assert outcome.disable_endpoint
    assert "5 days" in outcome.detail
    assert "500" in outcome.detail


async def test_what_the_receiver_asks_for_is_not_overridden() -> None:
    """A Retry-After stays what it is."""
    sink, receiver, _rows, _clock = _make_sink()
    receiver.outcome = Outcome(kind=OutcomeKind.RETRY, retry_after=3600, pause_destination=True)
    outcomes = [await sink.send(_delivery()) for _ in range(6)]
    assert {one.retry_after for one in outcomes} == {3600}
