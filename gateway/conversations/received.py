"""The event about a message that was received, as clients see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from delivery.events.event import Event, EventType
from gateway.store.conversations.messages import visible_attachment


class ReceivedMessage(Protocol):
    """What a person sent."""

    @property
    def text(self) -> str:
        """Return the text."""

    @property
    def asker(self) -> str:
        """Return the id of the person or key."""

    @property
    def attachments(self) -> Sequence[Mapping[str, Any]]:
        """Return the files."""


class MessagePlace(Protocol):
    """The ids under which a message was stored."""

    @property
    def conversation(self) -> str:
        """Return the conversation's id."""

    @property
    def turn(self) -> str:
        """Return the turn's id."""

    @property
    def message(self) -> str:
        """Return the message's id."""


def received_event(received: ReceivedMessage, place: MessagePlace, *, merged: bool = False) -> Event:
    """Return the event; `merged` means that the message joined a turn that waited."""
    data: dict[str, Any] = {
        "message": place.message,
        "role": "user",
        "text": received.text,
        "author": received.asker,
        "files": [visible_attachment(one) for one in received.attachments],
    }
    if merged:
        data["joined"] = True
    return Event.now(EventType.MESSAGE_RECEIVED, place.conversation, data, turn=place.turn)
