"""The life of one delivery: its states, and the one function that says what an outcome makes of it.

                    a                       b
    pending ────────────────► sending ───────────────► delivered ─┐
       ▲                      ▲  │ │ │                            │
       │                    a │  │ │ └──────── d ────► ambiguous ─┤
       │                      │  │ │                              │
       │            retrying ─┘  │ └────────── e ────► dead ──────┤
       │                ▲        │                                │
       │                └─── c ──┤                                │
       │                         └──────────── f ────► suppressed ┤
       └────────────────────────────── g ─────────────────────────┘

    a  claimed: the row says `sending` and the attempt is written down before the sink is called
    b  the far end took it (also from pending and retrying: a late answer of an attempt given up for lost)
    c  it failed and is due again; or it may have arrived and the policy is to say it again
    d  it may have arrived, saying it again could say it twice, and the policy is `at_most_once`
    e  the far end refuses this content for good, or the schedule is used up
    f  the destination takes nothing any more (also from pending and retrying, without an attempt)
    g  an operator asks for it again: attempts start over, ids stay the same

Of the states on the right none is ever left but by g, whatever outcome arrives.
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
    """Where a delivery stands."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    AMBIGUOUS = "ambiguous"
    DELIVERED = "delivered"
    DEAD = "dead"
    SUPPRESSED = "suppressed"


FINAL = frozenset(
    {DeliveryState.DELIVERED, DeliveryState.AMBIGUOUS, DeliveryState.DEAD, DeliveryState.SUPPRESSED}
)
"""States that only an operator's wish (edge g) leaves."""


class AmbiguityPolicy(StrEnum):
    """What to do when a message may have arrived and repeating it could say it twice."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What to write down and whom to tell after an attempt.

    `next_at` goes with retrying alone. `hold_until`: the whole destination waits. `uncertain`: an attempt
    may have arrived. `tell` is the event to add to the conversation. `bury`: the destination takes nothing
    any more; `disable`: the endpoint is to be disabled; `operator`: say loudly that a person must help.
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
    policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE,
    random_source: RandomSource = system_random,
) -> Transition:
    """Return what attempt number `attempt` (from 1) makes of a delivery; `since` is its first attempt's time.

    An outcome that comes too late (the delivery is final or no longer being sent) changes nothing, except
    that a success still counts while the delivery has not ended otherwise.
    """
    if state in FINAL:
        return Transition(state=state)
    if outcome.kind is OutcomeKind.DELIVERED:
        return Transition(state=DeliveryState.DELIVERED, event_type=EventType.DELIVERY_SUCCEEDED)
    if state is not DeliveryState.SENDING:
        return Transition(state=state)
    ended = _final_transition(outcome, policy)
    if ended is not None:
        return ended
    moment = next_attempt_at(
        schedule,
        attempt=attempt,
        now=now,
        since=since,
        retry_after=outcome.retry_after,
        needs_operator=outcome.kind is OutcomeKind.OPERATOR,
        random_source=random_source,
    )
    return _retry_transition(outcome, moment, first=attempt <= 1, now=now)


def _final_transition(outcome: Outcome, policy: AmbiguityPolicy) -> Transition | None:
    """Return the judgement of an outcome that ends the delivery at once (edges d, e, f), else None."""
    if outcome.address_dead or outcome.disable_endpoint:
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
    """Return the judgement of an outcome that may be repeated at `moment` (edge c; None: edge e)."""
    uncertain = outcome.uncertain or outcome.kind is OutcomeKind.AMBIGUOUS
    operator = outcome.kind is OutcomeKind.OPERATOR
    if moment is None:
        return Transition(
            state=DeliveryState.DEAD,
            event_type=EventType.DELIVERY_DEAD,
            uncertain=uncertain,
            needs_operator=operator,
        )
    again = Transition(
        state=DeliveryState.RETRYING,
        next_at=moment,
        uncertain=uncertain,
        needs_operator=operator,
        # Every failure in the log would drown it; the first says that there is trouble, the end how it went.
        event_type=EventType.DELIVERY_FAILED if first and not outcome.pause_destination else None,
    )
    if outcome.pause_destination and outcome.retry_after is not None:
        held = timedelta(seconds=min(max(outcome.retry_after, 0.0), RETRY_AFTER_CAP))
        return replace(again, pause_until=now + held)
    return again


def recover(
    *, now: datetime, repeatable: bool, policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE
) -> Transition:
    """Return what becomes of a delivery found `sending` after a crash: due at once (c), or ambiguous (d).

    `repeatable`: saying it again cannot say it twice (a webhook's id, an edit, a send the platform
    recognises).
    """
    if not repeatable and policy is AmbiguityPolicy.AT_MOST_ONCE:
        return Transition(state=DeliveryState.AMBIGUOUS, uncertain=True, event_type=EventType.DELIVERY_FAILED)
    return Transition(state=DeliveryState.RETRYING, next_at=now, uncertain=not repeatable)
