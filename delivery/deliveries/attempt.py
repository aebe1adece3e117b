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

from delivery.deliveries.port import Outcome, Verdict
from delivery.deliveries.retry_schedule import (
    RETRY_AFTER_CAP,
    Schedule,
    Spread,
    next_attempt_at,
    ordinary_spread,
)
from delivery.events.event import Kind


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


class Policy(StrEnum):
    """What to do when a message may have arrived and repeating it could say it twice."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What to write down and whom to tell after an attempt.

    `next_at` goes with retrying alone. `hold_until`: the whole destination waits. `uncertain`: an attempt
    may have arrived. `tell` is the event to add to the conversation. `bury`: the destination takes nothing
    any more; `disable`: the endpoint is to be disabled; `operator`: say loudly that a person must help.
    """

    state: DeliveryState
    next_at: datetime | None = None
    hold_until: datetime | None = None
    uncertain: bool = False
    tell: Kind | None = None
    bury: bool = False
    disable: bool = False
    operator: bool = False


def judge(
    state: DeliveryState,
    outcome: Outcome,
    *,
    attempt: int,
    schedule: Schedule,
    now: datetime,
    since: datetime | None = None,
    policy: Policy = Policy.AT_LEAST_ONCE,
    spread: Spread = ordinary_spread,
) -> Judgement:
    """Return what attempt number `attempt` (from 1) makes of a delivery; `since` is its first attempt's time.

    An outcome that comes too late (the delivery is final or no longer being sent) changes nothing, except
    that a success still counts while the delivery has not ended otherwise.
    """
    if state in FINAL:
        return Judgement(state=state)
    if outcome.verdict is Verdict.DELIVERED:
        return Judgement(state=DeliveryState.DELIVERED, tell=Kind.DELIVERY_SUCCEEDED)
    if state is not DeliveryState.SENDING:
        return Judgement(state=state)
    ended = _end(outcome, policy)
    if ended is not None:
        return ended
    moment = next_attempt_at(
        schedule,
        attempt=attempt,
        now=now,
        since=since,
        retry_after=outcome.retry_after,
        rarely=outcome.verdict is Verdict.OPERATOR,
        spread=spread,
    )
    return _again(outcome, moment, first=attempt <= 1, now=now)


def _end(outcome: Outcome, policy: Policy) -> Judgement | None:
    """Return the judgement of an outcome that ends the delivery at once (edges d, e, f), else None."""
    if outcome.address_dead or outcome.disable:
        return Judgement(
            state=DeliveryState.SUPPRESSED,
            tell=Kind.DELIVERY_FAILED,
            bury=outcome.address_dead,
            disable=outcome.disable,
        )
    if outcome.verdict is Verdict.GIVE_UP:
        return Judgement(state=DeliveryState.DEAD, tell=Kind.DELIVERY_DEAD)
    if outcome.verdict is Verdict.AMBIGUOUS and policy is Policy.AT_MOST_ONCE:
        return Judgement(state=DeliveryState.AMBIGUOUS, uncertain=True, tell=Kind.DELIVERY_FAILED)
    return None


def _again(outcome: Outcome, moment: datetime | None, *, first: bool, now: datetime) -> Judgement:
    """Return the judgement of an outcome that may be repeated at `moment` (edge c; None: edge e)."""
    uncertain = outcome.uncertain or outcome.verdict is Verdict.AMBIGUOUS
    operator = outcome.verdict is Verdict.OPERATOR
    if moment is None:
        return Judgement(
            state=DeliveryState.DEAD, tell=Kind.DELIVERY_DEAD, uncertain=uncertain, operator=operator
        )
    again = Judgement(
        state=DeliveryState.RETRYING,
        next_at=moment,
        uncertain=uncertain,
        operator=operator,
        # Every failure in the log would drown it; the first says that there is trouble, the end how it went.
        tell=Kind.DELIVERY_FAILED if first and not outcome.hold else None,
    )
    if outcome.hold and outcome.retry_after is not None:
        held = timedelta(seconds=min(max(outcome.retry_after, 0.0), RETRY_AFTER_CAP))
        return replace(again, hold_until=now + held)
    return again


def recover(*, now: datetime, repeatable: bool, policy: Policy = Policy.AT_LEAST_ONCE) -> Judgement:
    """Return what becomes of a delivery found `sending` after a crash: due at once (c), or ambiguous (d).

    `repeatable`: saying it again cannot say it twice (a webhook's id, an edit, a send the platform
    recognises).
    """
    if not repeatable and policy is Policy.AT_MOST_ONCE:
        return Judgement(state=DeliveryState.AMBIGUOUS, uncertain=True, tell=Kind.DELIVERY_FAILED)
    return Judgement(state=DeliveryState.RETRYING, next_at=now, uncertain=not repeatable)
