"""When an endpoint is left alone for a while, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.webhooks.circuit_breaker import CircuitBreakerSink, EndpointHealth

START = datetime(2026, 1, 1, tzinfo=UTC)
DELIVERED = Outcome(kind=OutcomeKind.DELIVERED)
FAILED = Outcome(kind=OutcomeKind.RETRY, detail="the receiver answered 500")


class ScriptedSink(Sink):
    """An endpoint that answers with `outcome`."""

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
    """A clock that is set; time goes by with it, except in its jumps."""

    def __init__(self) -> None:
        self.now = START
        self.jumped = timedelta()

    def jump(self, by: timedelta) -> None:
        """Change the time of day, which takes no time."""
        self.now += by
        self.jumped += by

    def ticks(self) -> float:
        """Return the seconds that went by."""
        return (self.now - self.jumped).timestamp()

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now


def _delivery(attempt: int = 2) -> Delivery:
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
        attempt=attempt,
    )


def _make_sink() -> tuple[CircuitBreakerSink, ScriptedSink, MemoryEndpointHealth, ManualClock]:
    receiver, rows, clock = ScriptedSink(), MemoryEndpointHealth(), ManualClock()
    return CircuitBreakerSink(receiver, health=rows, now=clock, ticks=clock.ticks), receiver, rows, clock


async def test_failures_within_seconds_do_not_pause_the_endpoint() -> None:
    """A receiver that restarts fails many events at once; the next event is still sent without a pause."""
    sink, receiver, _health, clock = _make_sink()
    outcomes = [await sink.send(_delivery()) for _ in range(20)]
    clock.now += timedelta(seconds=9)
    outcomes.append(await sink.send(_delivery()))
    assert not any(one.pause_destination for one in outcomes)
    receiver.outcome = DELIVERED
    assert await sink.send(_delivery()) == DELIVERED


async def test_a_failing_endpoint_is_paused_for_half_of_the_time_it_has_failed() -> None:
    """After ten seconds the endpoint is paused, whatever the number of failures, for an hour at most."""
    sink, _receiver, _health, clock = _make_sink()
    for _ in range(5):
        await sink.send(_delivery())
    for seconds, pause in ((10, 5), (60, 30), (60, 30), (7200, 3600), (36_000, 3600)):
        clock.now = START + timedelta(seconds=seconds)
        outcome = await sink.send(_delivery())
        assert (outcome.pause_destination, outcome.retry_after) == (True, pause)


async def test_fewer_than_five_failures_do_not_pause_the_endpoint() -> None:
    """A single delivery that fails for a while follows its own schedule."""
    sink, _receiver, _health, clock = _make_sink()
    for _ in range(4):
        clock.now += timedelta(minutes=5)
        assert not (await sink.send(_delivery())).pause_destination


async def test_a_success_closes_the_circuit() -> None:
    """After a success the count and the time start again, and a healthy endpoint costs no write."""
    sink, receiver, health, clock = _make_sink()
    for _ in range(6):
        clock.now += timedelta(minutes=1)
        await sink.send(_delivery())
    receiver.outcome = DELIVERED
    for _ in range(3):
        assert await sink.send(_delivery()) == DELIVERED
    assert (health.since, health.writes) == (None, 1)
    receiver.outcome = FAILED
    for _ in range(6):
        assert not (await sink.send(_delivery())).pause_destination


async def test_an_endpoint_that_fails_for_five_days_is_disabled() -> None:
    """An hour before it is not; then it is, with the reason; a success in between restarts the days."""
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


async def test_an_endpoint_without_events_is_not_disabled_by_a_first_attempt() -> None:
    """The next event comes a week after a failed one: its first failure is retried, its second disables."""
    sink, _receiver, _rows, clock = _make_sink()
    await sink.send(_delivery(attempt=8))
    clock.now += timedelta(days=7)
    assert (await sink.send(_delivery(attempt=1))).kind is OutcomeKind.RETRY
    assert (await sink.send(_delivery(attempt=2))).disable_endpoint


async def test_a_clock_that_jumps_neither_disables_nor_pauses_a_failing_endpoint() -> None:
    """A machine resumes after six days: the endpoint has an hour to answer, and pauses begin short again."""
    sink, _receiver, _rows, clock = _make_sink()
    for _ in range(6):
        await sink.send(_delivery())
        clock.now += timedelta(minutes=20)
    clock.jump(timedelta(days=6))
    outcomes = [await sink.send(_delivery()) for _ in range(6)]
    clock.now += timedelta(minutes=59)
    outcomes.append(await sink.send(_delivery()))
    assert not any(one.disable_endpoint for one in outcomes)
    assert not any(one.pause_destination for one in outcomes[:6])
    clock.now += timedelta(minutes=1)
    assert (await sink.send(_delivery())).disable_endpoint


async def test_a_gateway_that_was_off_for_days_does_not_disable_a_failing_endpoint_at_once() -> None:
    """Its network may come later than it starts."""
    sink, _receiver, rows, clock = _make_sink()
    rows.since = START - timedelta(days=6)
    outcomes = [await sink.send(_delivery()) for _ in range(3)]
    assert not any(one.disable_endpoint for one in outcomes)
    clock.now += timedelta(hours=1)
    assert (await sink.send(_delivery())).disable_endpoint


async def test_what_the_receiver_asks_for_is_not_overridden() -> None:
    """A Retry-After stays what it is."""
    sink, receiver, _rows, _clock = _make_sink()
    receiver.outcome = Outcome(kind=OutcomeKind.RETRY, retry_after=3600, pause_destination=True)
    outcomes = [await sink.send(_delivery()) for _ in range(6)]
    assert {one.retry_after for one in outcomes} == {3600}


async def test_a_failure_stored_beside_a_success_does_not_disable_a_healthy_endpoint() -> None:
    """An attempt at the same time, or another replica, stores a failure; later successes still clear it."""
    sink, receiver, health, clock = _make_sink()
    receiver.outcome = DELIVERED
    await sink.send(_delivery())
    await health.record_failure("whk_1", clock.now)
    for _ in range(5):
        clock.now += timedelta(days=1)
        await sink.send(_delivery())
    receiver.outcome = FAILED
    assert not (await sink.send(_delivery())).disable_endpoint


async def test_an_endpoint_that_starts_over_is_not_paused_for_its_earlier_failures() -> None:
    """The owner has changed or enabled it: the first failure after that is the first of a new count."""
    sink, _receiver, health, clock = _make_sink()
    for _ in range(6):
        clock.now += timedelta(minutes=1)
        await sink.send(_delivery())
    health.since = None
    clock.now += timedelta(minutes=1)
    outcomes = [await sink.send(_delivery()) for _ in range(6)]
    assert not any(one.pause_destination for one in outcomes)
    clock.now += timedelta(seconds=10)
    assert (await sink.send(_delivery())).retry_after == 5
