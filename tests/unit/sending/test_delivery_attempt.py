"""The life of one delivery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.deliveries.attempt import FINAL, AmbiguityPolicy, DeliveryState, Transition, next_state, recover
from delivery.deliveries.port import Outcome, OutcomeKind
from delivery.deliveries.retry_schedule import CHAT, WEBHOOK, RetrySchedule
from delivery.events.event import EventType

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SENDING = DeliveryState.SENDING

outcomes = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    retry_after=st.none() | st.floats(allow_nan=False),
    pause_destination=st.booleans(),
    address_dead=st.booleans(),
    disable_endpoint=st.booleans(),
)
schedules = st.sampled_from([CHAT, WEBHOOK])
policies = st.sampled_from(AmbiguityPolicy)


@given(
    state=st.sampled_from(sorted(FINAL)),
    outcome=outcomes,
    attempt=st.integers(1, 400),
    schedule=schedules,
    policy=policies,
)
def test_nothing_leaves_a_final_state(
    state: DeliveryState, outcome: Outcome, attempt: int, schedule: RetrySchedule, policy: AmbiguityPolicy
) -> None:
    """No outcome changes a delivery that has ended, and no event is emitted."""
    judged = next_state(state, outcome, attempt=attempt, schedule=schedule, now=NOW, policy=policy)
    assert judged.state is state
    assert judged == Transition(state=state)


@given(outcome=outcomes, attempt=st.integers(1, 400), schedule=schedules, policy=policies)
def test_every_transition_is_one_of_the_drawn_edges(
    outcome: Outcome, attempt: int, schedule: RetrySchedule, policy: AmbiguityPolicy
) -> None:
    """From sending one gets to the end or to retrying, and only retrying has a next attempt."""
    judged = next_state(SENDING, outcome, attempt=attempt, schedule=schedule, now=NOW, policy=policy)
    assert judged.state in FINAL | {DeliveryState.RETRYING}
    assert (judged.state is DeliveryState.RETRYING) == (judged.next_at is not None)
    assert judged.next_at is None or judged.next_at >= NOW
    assert (judged.state is DeliveryState.DELIVERED) == (outcome.kind is OutcomeKind.DELIVERED) or (
        outcome.address_dead or outcome.disable_endpoint
    )
    assert judged.state not in FINAL or judged.event_type is not None


@given(chosen=st.lists(outcomes, max_size=400), schedule=schedules, policy=policies)
def test_every_delivery_ends(chosen: list[Outcome], schedule: RetrySchedule, policy: AmbiguityPolicy) -> None:
    """However its attempts go, a delivery comes to an end, and its moments never run backwards."""
    state, moment, attempt = DeliveryState.PENDING, NOW, 0
    endless = Outcome(kind=OutcomeKind.RETRY)
    while state not in FINAL:
        outcome = chosen[attempt] if attempt < len(chosen) else endless
        attempt += 1
        judged = next_state(
            SENDING, outcome, attempt=attempt, schedule=schedule, now=moment, since=NOW, policy=policy
        )
        state = judged.state
        assert judged.next_at is None or judged.next_at >= moment
        moment = judged.next_at or moment
    assert moment <= NOW + timedelta(hours=50)


def test_a_success_ends_it() -> None:
    """An accepted send is delivered, and the conversation gets an event."""
    judged = next_state(SENDING, Outcome(kind=OutcomeKind.DELIVERED), attempt=3, schedule=CHAT, now=NOW)
    assert (judged.state, judged.event_type) == (DeliveryState.DELIVERED, EventType.DELIVERY_SUCCEEDED)


@pytest.mark.parametrize("state", sorted({DeliveryState.PENDING, DeliveryState.RETRYING}))
def test_a_late_success_still_counts(state: DeliveryState) -> None:
    """A late success of a lost attempt prevents the repeat; a late failure changes nothing."""
    delivered = next_state(state, Outcome(kind=OutcomeKind.DELIVERED), attempt=1, schedule=CHAT, now=NOW)
    assert delivered.state is DeliveryState.DELIVERED
    failed = next_state(state, Outcome(kind=OutcomeKind.GIVE_UP), attempt=1, schedule=CHAT, now=NOW)
    assert failed.state is state


def test_what_may_have_arrived_is_said_again_by_default() -> None:
    """At least once: a send that may have arrived is repeated and marked as uncertain."""
    judged = next_state(SENDING, Outcome(kind=OutcomeKind.AMBIGUOUS), attempt=1, schedule=CHAT, now=NOW)
    assert judged.state is DeliveryState.RETRYING
    assert judged.uncertain


def test_what_may_have_arrived_is_not_said_again_at_most_once() -> None:
    """At most once: a send that may have arrived is marked and left to a person."""
    judged = next_state(
        SENDING,
        Outcome(kind=OutcomeKind.AMBIGUOUS),
        attempt=1,
        schedule=CHAT,
        now=NOW,
        policy=AmbiguityPolicy.AT_MOST_ONCE,
    )
    assert judged.state is DeliveryState.AMBIGUOUS


@pytest.mark.parametrize(
    ("repeatable", "policy", "state", "uncertain"),
    [
        (True, AmbiguityPolicy.AT_LEAST_ONCE, DeliveryState.RETRYING, False),
        (True, AmbiguityPolicy.AT_MOST_ONCE, DeliveryState.RETRYING, False),
        (False, AmbiguityPolicy.AT_LEAST_ONCE, DeliveryState.RETRYING, True),
        (False, AmbiguityPolicy.AT_MOST_ONCE, DeliveryState.AMBIGUOUS, True),
    ],
)
def test_a_crash_in_mid_attempt_repeats_what_is_safe(
    *, repeatable: bool, policy: AmbiguityPolicy, state: DeliveryState, uncertain: bool
) -> None:
    """After a crash an edit or a webhook is repeated at once, a bare send by its policy."""
    judged = recover(now=NOW, repeatable=repeatable, policy=policy)
    assert (judged.state, judged.uncertain) == (state, uncertain)
    assert judged.next_at == (NOW if state is DeliveryState.RETRYING else None)


def test_a_rate_limit_holds_the_destination_and_is_no_failure() -> None:
    """A platform's wait pauses the whole destination without an alarm."""
    outcome = Outcome(kind=OutcomeKind.RETRY, retry_after=4.0, pause_destination=True)
    judged = next_state(SENDING, outcome, attempt=1, schedule=CHAT, now=NOW)
    assert judged.pause_until == judged.next_at == NOW + timedelta(seconds=4)
    assert judged.event_type is None


@pytest.mark.parametrize(("attempt", "reported"), [(1, EventType.DELIVERY_FAILED), (2, None), (7, None)])
def test_the_first_failure_is_reported_and_the_next_are_not(attempt: int, reported: EventType | None) -> None:
    """The conversation gets one event for the first failure, and one for the end."""
    judged = next_state(SENDING, Outcome(kind=OutcomeKind.RETRY), attempt=attempt, schedule=WEBHOOK, now=NOW)
    assert judged.event_type is reported


def test_a_used_up_schedule_is_death() -> None:
    """After the eighth failed attempt a webhook's delivery is dead, and an event reports it."""
    judged = next_state(SENDING, Outcome(kind=OutcomeKind.RETRY), attempt=8, schedule=WEBHOOK, now=NOW)
    assert (judged.state, judged.event_type) == (DeliveryState.DEAD, EventType.DELIVERY_DEAD)


def test_a_dead_address_is_suppressed_and_buried() -> None:
    """A blocked bot is not a dead letter: the delivery is suppressed and the destination remembered."""
    outcome = Outcome(kind=OutcomeKind.GIVE_UP, address_dead=True)
    judged = next_state(SENDING, outcome, attempt=1, schedule=CHAT, now=NOW)
    assert (judged.state, judged.mark_dead) == (DeliveryState.SUPPRESSED, True)


def test_a_thread_that_is_gone_is_no_dead_letter() -> None:
    """No person can restore a deleted thread: the delivery is suppressed, and its room is not marked dead."""
    outcome = Outcome(kind=OutcomeKind.GIVE_UP, thread_dead=True)
    judged = next_state(SENDING, outcome, attempt=1, schedule=CHAT, now=NOW)
    assert (judged.state, judged.mark_dead) == (DeliveryState.SUPPRESSED, False)
    assert judged.event_type is EventType.DELIVERY_FAILED


def test_a_gone_endpoint_is_disabled() -> None:
    """A receiver that answers 410 suppresses the delivery and disables the endpoint."""
    outcome = Outcome(kind=OutcomeKind.GIVE_UP, disable_endpoint=True, status=410)
    judged = next_state(SENDING, outcome, attempt=1, schedule=WEBHOOK, now=NOW)
    assert (judged.state, judged.disable_endpoint) == (DeliveryState.SUPPRESSED, True)


def test_refused_content_is_a_dead_letter() -> None:
    """A text the platform refuses for good is dead after one attempt."""
    judged = next_state(SENDING, Outcome(kind=OutcomeKind.GIVE_UP), attempt=1, schedule=CHAT, now=NOW)
    assert judged.state is DeliveryState.DEAD


def test_an_operator_is_called_and_the_delivery_kept() -> None:
    """A wrong token keeps the delivery waiting, rarely retried, and asks for the operator."""
    judged = next_state(
        SENDING, Outcome(kind=OutcomeKind.OPERATOR), attempt=1, schedule=CHAT, now=NOW, since=NOW
    )
    assert judged.needs_operator
    assert judged.next_at is not None
    assert judged.next_at >= NOW + timedelta(seconds=900)


def test_what_may_have_arrived_earlier_stays_uncertain_until_it_is_known() -> None:
    """A sink that could not look the message up leaves the delivery uncertain, whatever this attempt met."""
    outcome = Outcome(kind=OutcomeKind.RETRY, uncertain=True)
    judged = next_state(SENDING, outcome, attempt=2, schedule=CHAT, now=NOW)
    assert (judged.state, judged.uncertain) == (DeliveryState.RETRYING, True)


def test_a_chat_delivery_is_parked_within_minutes() -> None:
    """A conversation waits three minutes for a failing delivery, and an hour for an unreachable platform."""
    parked: dict[bool, datetime] = {}
    for unreached in (False, True):
        moment, state, attempt = NOW, SENDING, 0
        while state is not DeliveryState.PARKED:
            attempt += 1
            judged = next_state(
                SENDING,
                Outcome(kind=OutcomeKind.RETRY, unreached=unreached),
                attempt=attempt,
                schedule=CHAT,
                now=moment,
                since=NOW,
                failing_since=NOW,
            )
            state = judged.state
            parked[unreached] = moment
            moment = judged.next_at or moment
            assert judged.next_at is not None
    assert timedelta(minutes=2) < parked[False] - NOW <= timedelta(minutes=4)
    assert timedelta(minutes=30) < parked[True] - NOW <= timedelta(hours=1)


@given(outcome=outcomes, attempt=st.integers(1, 400))
def test_only_a_failure_of_the_delivery_parks_it(outcome: Outcome, attempt: int) -> None:
    """A rate limit or a problem for an operator is the whole room's, and webhooks are never parked."""
    first = NOW - timedelta(hours=2)
    judged = next_state(
        SENDING, outcome, attempt=attempt, schedule=CHAT, now=NOW, since=first, failing_since=first
    )
    own = outcome.kind in {OutcomeKind.RETRY, OutcomeKind.AMBIGUOUS} and not outcome.pause_destination
    assert (judged.state is DeliveryState.PARKED) == (own and judged.next_at is not None)
    webhook = next_state(
        SENDING, outcome, attempt=attempt, schedule=WEBHOOK, now=NOW, since=first, failing_since=first
    )
    assert webhook.state is not DeliveryState.PARKED
