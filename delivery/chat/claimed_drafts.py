"""Drafts as the sink gets them: claimed for a final text, or for the report that their turn ended early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from delivery.deliveries.part import Part
from delivery.deliveries.port import Delivery
from delivery.events.event import EventType

ENDS_EARLY = frozenset({EventType.TURN_FAILED, EventType.TURN_CANCELLED})
"""Events of a turn that may leave a draft that no final text replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDraft:
    """A claimed draft: its platform id (None: not visible), or the seconds to wait for its writer.

    `shown` is its text, if that must be kept. With a `key` it may be visible since `since`, because the call
    with that key was not answered, or under another id, because its room was moved. `is_unsent`: the message
    to change is still to be sent.
    """

    platform_id: str | None = None
    wait: float = 0.0
    shown: str = ""
    key: str = ""
    since: datetime | None = None
    is_unsent: bool = False


ClaimDraft = Callable[[str, str], Awaitable[ClaimedDraft]]
"""Claim the draft of (target, message) for its final text."""

ClaimUnfinished = Callable[[Delivery], Awaitable[ClaimedDraft]]
"""Claim the draft that the turn of a delivery left when it ended early, for that delivery."""


async def no_draft(_target: str, _message: str) -> ClaimedDraft:
    """Claim nothing: there are no drafts."""
    return ClaimedDraft()


async def no_unfinished(_delivery: Delivery) -> ClaimedDraft:
    """Claim nothing: no turn leaves a draft."""
    return ClaimedDraft()


def replaces_draft(delivery: Delivery, part: Part, sent: str | None) -> bool:
    """Return whether the message `sent` shows what the visible draft of a delivery, another message, should.

    An earlier attempt may have turned the draft into the answer: then both are one message, and the id of a
    draft ends with the message's own.
    """
    if delivery.platform_id is None or delivery.part or part.edits is not None:
        return False
    if delivery.platform_id.endswith(sent or ""):
        return False
    return part.message is not None or delivery.event_type in ENDS_EARLY
