"""Where something was said, and when: Slack's ids and stamps as ours."""

from __future__ import annotations

from datetime import UTC, datetime

from channels.message import Address, Room
from channels.slack import text


def room_of(room: str, kind: str | None) -> Room:
    """Tell the kind of a room: message events say it, elsewhere a private one is known by its letter."""
    direct = kind == "im" if kind else room.startswith("D")
    return Room.DIRECT if direct else Room.GROUP


def address_of(channel: str, room_id: str, room: Room, thread: str | None, own: str | None) -> Address:
    """Return the address: in a channel each message opens a thread; a private chat is one conversation."""
    opened = own if room is Room.GROUP else None
    return Address(channel=channel, room=text.clean(room_id), thread=thread or opened)


def moment_of(stamp: str) -> datetime:
    """Return the time of a message's stamp."""
    return datetime.fromtimestamp(float(stamp), UTC)
