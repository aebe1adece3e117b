"""Find the chat message of an earlier event, for a delivery that changes it or adds to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from channels.commonmark.markup import close_fence, split
from channels.port import ChannelLimits
from delivery.chat import draft_store
from delivery.database.engine import Database
from delivery.database.tables import OPEN_DELIVERIES
from delivery.deliveries import queries
from delivery.events.event import EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """The message of an event; without a `platform_id` it was not sent, `is_open`: it will be.

    `text` is what the message keeps above the event: the unfinished answer of a turn that failed.
    """

    platform_id: str | None = None
    is_open: bool = False
    text: str = ""


HAVE_BUTTONS = frozenset({EventType.APPROVAL_REQUESTED, EventType.QUESTION_REQUESTED, EventType.TURN_FAILED})
"""Events whose last message is changed, because it has the buttons; of others the first one is."""

FindShown = Callable[[str, str], Awaitable[ShownMessage]]
"""Return the message of an event's id in a target; raises DatabaseUnavailable."""


async def nothing_shown(_event: str, _target: str) -> ShownMessage:
    """Find no message."""
    return ShownMessage()


def find_shown_in(database: Database) -> FindShown:
    """Return the function that finds messages by their deliveries."""

    async def find(event: str, target: str) -> ShownMessage:
        async with database.read() as connection:
            found = await queries.list_for_event(connection, event, target)
            parts = sorted(found, key=lambda view: view.part)
            if not parts:
                return ShownMessage()
            shown = parts[-1 if parts[0].event_type in HAVE_BUTTONS else 0]
            text = await draft_store.get_ended_text(
                connection, shown.turn or "", target, by=shown.id, platform_id=shown.platform_id
            )
        return ShownMessage(platform_id=shown.platform_id, is_open=shown.state in OPEN_DELIVERIES, text=text)

    return find


def append_below(shown: str, text: str, limits: ChannelLimits) -> str:
    """Return the text that was visible, shortened to the length limit, with `text` below it."""
    available = limits.text - limits.measure(text) - 2
    if available <= 0:
        return text
    shown = close_fence(shown)
    shortened = shown if limits.measure(shown) <= available else split(shown, available, limits.measure)[0]
    return f"{shortened}\n\n{text}"
