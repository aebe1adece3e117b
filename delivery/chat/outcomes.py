"""The outcome of an attempt that the platform refused or did not answer."""

from __future__ import annotations

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Address
from delivery.chat.rate_limit import RateLimiter
from delivery.deliveries.port import Outcome, OutcomeKind

MAX_REASON_LENGTH = 300


def outcome_for_error(
    error: ChannelError, rate_limiter: RateLimiter, address: Address, *, repeatable: bool
) -> Outcome:
    """Return the outcome for a platform's error; pause the rate limiter if the platform demands it."""
    if isinstance(error, RateLimited):
        pause_for(rate_limiter, error, address)
        return Outcome(
            kind=OutcomeKind.RETRY,
            detail=str(error),
            retry_after=error.retry_after,
            pause_destination=True,
            pause_bot=error.scope == "account",
        )
    if isinstance(error, Ambiguous):
        kind = OutcomeKind.RETRY if repeatable else OutcomeKind.AMBIGUOUS
        return Outcome(kind=kind, detail=str(error), uncertain=True)
    return Outcome(
        kind=_KIND_BY_REMEDY[error.remedy],
        detail=str(error),
        unreached=isinstance(error, Unreachable),
        content_refused=isinstance(error, Rejected),
        unauthorized=isinstance(error, Unauthorized),
        address_dead=isinstance(error, Undeliverable) and not isinstance(error, ThreadUndeliverable),
        thread_dead=isinstance(error, ThreadUndeliverable),
    )


def pause_for(rate_limiter: RateLimiter, error: RateLimited, address: Address) -> None:
    """Pause the room or the account that the platform's limit is about."""
    if error.scope == "account":
        rate_limiter.pause_account(error.retry_after, of=address.destination)
    else:
        rate_limiter.pause(error.retry_after, room=address.destination)


_KIND_BY_REMEDY = {
    "retry": OutcomeKind.RETRY,
    "give_up": OutcomeKind.GIVE_UP,
    "operator": OutcomeKind.OPERATOR,
}


def refusal_notice(outcome: Outcome) -> str:
    """Return the message that is sent in place of one whose content the platform refuses."""
    why = " ".join(outcome.detail.split())[:MAX_REASON_LENGTH].rstrip(".")
    return f"The platform refused my message ({why})."
