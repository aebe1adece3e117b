"""The states of one delivery, and the function that returns its next state after an outcome.

                    a                       b
    pending ────────────────► sending ───────────────► delivered ─┐
       ▲                      ▲  │ │ │                            │
       │                    a │  │ │ └──────── d ────► ambiguous ─┤
       │                      │  │ │                              │
       │   retrying, parked ──┘  │ └────────── e ────► dead ──────┤
       │           ▲             │                                │
       │           └── c, h ─────┤                                │
       │                         └──────────── f ────► suppressed ┤
       └────────────────────────────── g ─────────────────────────┘

    a  claimed: the row is `sending` and the attempt is recorded before the sink is called
    b  the receiver accepted it (also from pending and retrying: a late response to an earlier attempt)
    c  it failed and is due again; or it may have arrived and the policy is to send it again
    d  it may have arrived, another attempt could send it twice, and the policy is `at_most_once`
    e  the receiver rejects this content permanently, or the schedule is used up
    f  the destination is dead (also from pending and retrying, without an attempt), or its thread is gone
    g  an operator retries it: attempts start again from 1, ids stay the same
    h  it keeps failing: it is retried as in c, but those behind it are sent

Only g leaves the states on the right, whatever outcome arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from delivery.deliveries.port import Outcome, OutcomeKind
from delivery.deliveries.retry_schedule import (
    RETRY_AFTER_CAP,
    RandomSource,
    RetrySchedule,
    next_attempt_at,
    system_random,
)
from delivery.events.event import EventType


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    PARKED = "parked"
    AMBIGUOUS = "ambiguous"
    DELIVERED = "delivered"
    DEAD = "dead"
    SUPPRESSED = "suppressed"


FINAL = frozenset(
    {DeliveryState.DELIVERED, DeliveryState.AMBIGUOUS, DeliveryState.DEAD, DeliveryState.SUPPRESSED}
)
"""The states that only an operator's retry (edge g) leaves."""


class AmbiguityPolicy(StrEnum):
    """What to do when a message may have arrived and another attempt could send it twice."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The changes to record after an attempt.

    `next_at` is set only for retrying and parked. `pause_until`: the whole destination waits. `uncertain`:
    an attempt may have arrived. `event_type` is the event to emit. `mark_dead`: the destination accepts
    nothing any more. `disable_endpoint`: disable the endpoint. `needs_operator`: log an error, because a
    person must act.
    """

    state: DeliveryState
    next_at: datetime | None = None
    pause_until: datetime | None = None
    uncertain: bool = False
    event_type: EventType | None = None
    mark_dead: bool = False
    disable_endpoint: bool = False
    needs_operator: bool = False


def next_state(
    state: DeliveryState,
    outcome: Outcome,
    *,
    attempt: int,
    schedule: RetrySchedule,
    now: datetime,
    since: datetime | None = None,
    failing_since: datetime | None = None,
    policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE,
    random_source: RandomSource = system_random,
) -> Transition:
    """Return the transition after attempt number `attempt` (from 1), of a delivery that is due since `since`.

    `failing_since` is the start of the first attempt; the schedule's `park_after` counts from then.

    An outcome that comes too late (the delivery is final or no longer being sent) changes nothing, except
    that a success still counts while the delivery is unfinished.
    """
    if state in FINAL:
        return Transition(state=state)
    if outcome.kind is OutcomeKind.DELIVERED:
        return Transition(state=DeliveryState.DELIVERED, event_type=EventType.DELIVERY_SUCCEEDED)
    if state is not DeliveryState.SENDING:
        return Transition(state=state)
    final = _final_transition(outcome, policy)
    if final is not None:
        return final
    moment = next_attempt_at(
        schedule,
        attempt=attempt,
        now=now,
        since=since,
        retry_after=outcome.retry_after,
        needs_operator=outcome.kind is OutcomeKind.OPERATOR,
        random_source=random_source,
    )
    transition = _retry_transition(outcome, moment, first=attempt <= 1, now=now)
    if _is_parked(transition, outcome, schedule, failing_since):
        return replace(transition, state=DeliveryState.PARKED, event_type=EventType.DELIVERY_FAILED)
    return transition


def _is_parked(
    transition: Transition, outcome: Outcome, schedule: RetrySchedule, failing_since: datetime | None
) -> bool:
    """Return whether the next attempt is so late that those behind this delivery must not wait for it.

    A rate limit and a problem for an operator concern the whole room, so nothing is parked for them.
    """
    if transition.next_at is None or outcome.pause_destination or outcome.kind is OutcomeKind.OPERATOR:
        return False
    patience = schedule.park_unreached_after if outcome.unreached else schedule.park_after
    return (
        patience is not None
        and failing_since is not None
        and transition.next_at > failing_since + timedelta(seconds=patience)
    )


def _final_transition(outcome: Outcome, policy: AmbiguityPolicy) -> Transition | None:
    """Return the transition of an outcome that ends the delivery at once (edges d, e, f), else None."""
    is_gone = outcome.thread_dead and outcome.kind is OutcomeKind.GIVE_UP  # no person can bring it back
    if outcome.address_dead or outcome.disable_endpoint or is_gone:
        return Transition(
            state=DeliveryState.SUPPRESSED,
            event_type=EventType.DELIVERY_FAILED,
            mark_dead=outcome.address_dead,
            disable_endpoint=outcome.disable_endpoint,
        )
    if outcome.kind is OutcomeKind.GIVE_UP:
        return Transition(state=DeliveryState.DEAD, event_type=EventType.DELIVERY_DEAD)
    if outcome.kind is OutcomeKind.AMBIGUOUS and policy is AmbiguityPolicy.AT_MOST_ONCE:
        return Transition(state=DeliveryState.AMBIGUOUS, uncertain=True, event_type=EventType.DELIVERY_FAILED)
    return None


def _retry_transition(outcome: Outcome, moment: datetime | None, *, first: bool, now: datetime) -> Transition:
    """Return the transition of an outcome that is retried at `moment` (edge c; None: edge e)."""
    uncertain = outcome.uncertain or outcome.kind is OutcomeKind.AMBIGUOUS
    needs_operator = outcome.kind is OutcomeKind.OPERATOR
    if moment is None:
        return Transition(
            state=DeliveryState.DEAD,
            event_type=EventType.DELIVERY_DEAD,
            uncertain=uncertain,
            needs_operator=needs_operator,
        )
    retrying = Transition(
        state=DeliveryState.RETRYING,
        next_at=moment,
        uncertain=uncertain,
        needs_operator=needs_operator,
        # Only the first failure and the end are reported: an event for each failure would flood the stream.
        event_type=EventType.DELIVERY_FAILED if first and not outcome.pause_destination else None,
    )
    if outcome.pause_destination and outcome.retry_after is not None:
        pause = timedelta(seconds=min(max(outcome.retry_after, 0.0), RETRY_AFTER_CAP))
        return replace(retrying, pause_until=now + pause)
    return retrying


def recover(
    *, now: datetime, repeatable: bool, policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE
) -> Transition:
    """Return the transition of a delivery found `sending` after a crash: due at once (c), or ambiguous (d).

    `repeatable`: another attempt cannot send it twice (a webhook's id, an edit, a send that the platform
    recognises).
    """
    if not repeatable and policy is AmbiguityPolicy.AT_MOST_ONCE:
        return Transition(state=DeliveryState.AMBIGUOUS, uncertain=True, event_type=EventType.DELIVERY_FAILED)
    return Transition(state=DeliveryState.RETRYING, next_at=now, uncertain=not repeatable)
