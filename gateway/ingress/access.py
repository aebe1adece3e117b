"""The gate: who may talk to a bot, decided by immutable ids alone, the same for every kind of update."""

from __future__ import annotations

from enum import StrEnum

from channels.message import Author, Message, Moved, Room, Update
from delivery.database.engine import Connection
from gateway.ingress.channel_context import Desk
from gateway.store.conversations import pairings


class Admission(StrEnum):
    """What the gate says."""

    ADMITTED = "admitted"
    STRANGER = "stranger"
    """May ask an operator to be paired."""
    IGNORED = "ignored"


def person_of(author: Author, room: Room, room_id: str) -> str:
    """Name whom a pairing is for: rights from a direct chat are never carried into a group."""
    return author.id if room is Room.DIRECT else f"{author.id}@{room_id}"


async def authorize(connection: Connection, update: Update, desk: Desk) -> Admission:
    """Decide about one update of any kind: listed ids, `*`, or a pairing; never a bot, never ourselves.

    That a room has moved is the platform's own word and no person's.
    """
    if isinstance(update, Moved):
        return Admission.ADMITTED
    if is_ignored(update.author, desk):
        return Admission.IGNORED
    author = update.author
    if "*" in desk.allow or author.id in desk.allow:
        return Admission.ADMITTED
    person = person_of(author, update.room, update.address.room)
    if await pairings.is_paired(connection, desk.record.id, person):
        return Admission.ADMITTED
    return Admission.STRANGER


def is_ignored(author: Author, desk: Desk) -> bool:
    """Say whether somebody is never listened to, whatever the database knows of them (pure)."""
    if author.is_bot or not author.id or author.id == desk.own:
        return True
    return not any(one in desk.allow for one in ("*", "pairing", author.id))


def is_meant(message: Message, groups: str) -> bool:
    """Say whether a message in a room is for us: `mention`, `always`, or `command` only."""
    if message.room is Room.DIRECT or groups == "always":
        return True
    if groups == "command":
        return message.text.startswith(("/", "!"))
    return message.mentions_bot
