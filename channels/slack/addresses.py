"""Translate Slack's room ids, threads and timestamps."""

from __future__ import annotations

from datetime import UTC, datetime

from channels.inbox.text import clean
from channels.message import Address, RoomKind


def room_kind_of(room: str, kind: str | None) -> RoomKind:
    """Return the kind of a room: message events name it, otherwise the id's first letter tells it."""
    direct = kind == "im" if kind else room.startswith("D")
    return RoomKind.DIRECT if direct else RoomKind.GROUP


def address_of(channel: str, room_id: str, thread: str | None, message_ts: str | None) -> Address:
    """Return the address: a message that is not in a thread opens one, in private chats too."""
    return Address(channel=channel, room=clean(room_id), thread=thread or message_ts)


def parse_timestamp(ts: str) -> datetime:
    """Return the time of a message's `ts`."""
    return datetime.fromtimestamp(float(ts), UTC)
