"""Copies of events on NATS subjects that programs beside the gateway subscribe to."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from delivery.events.event import Event

PublishCopy = Callable[[str, bytes, Mapping[str, str]], Awaitable[bool]]
"""Send a message on a subject without confirmation; return False when it was not sent."""

Announce = Callable[[str, Event, int], Awaitable[None]]
"""Receive the account, the event and the seq of an event that was appended. Never waits for a reader."""

PREFIX = "dovecote"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def account_subjects(account: str) -> str:
    """Return the subject that matches all events of an account; raises ValueError for a wrong id."""
    if not _TOKEN.fullmatch(account):
        raise ValueError(f"{account!r} is no id: only letters, digits, _ and - can be part of a subject")
    return f"{PREFIX}.{account}.>"


def public_subject(account: str, event: Event) -> str | None:
    """Return the subject of an event, or None if an id could stand for other subjects."""
    if not (_TOKEN.fullmatch(account) and _TOKEN.fullmatch(event.conversation)):
        return None
    return f"{PREFIX}.{account}.{event.conversation}.{event.type}"


def announce_with(publish: PublishCopy) -> Announce:
    """Return the function that sends a copy of each appended event on its subject.

    The message id is the event's id, so a stream of the operator's own drops a repeated copy.
    """

    async def announce(account: str, event: Event, seq: int) -> None:
        subject = public_subject(account, event)
        if subject is not None:
            await publish(subject, event.encode(seq), {"Nats-Msg-Id": event.id})

    return announce
