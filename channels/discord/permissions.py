"""The permissions the bot needs in a server, and their number for the invitation."""

from __future__ import annotations

BITS = {
    "Add Reactions": 1 << 6,
    "View Channels": 1 << 10,
    "Send Messages": 1 << 11,
    "Attach Files": 1 << 15,
    "Read Message History": 1 << 16,
    "Send Messages in Threads": 1 << 38,
}
ADMINISTRATOR = 1 << 3

WANTED = sum(BITS.values())


def missing(granted: int) -> list[str]:
    """Return the names of the permissions that are not granted."""
    if granted & ADMINISTRATOR:
        return []
    return [name for name, bit in BITS.items() if not granted & bit]
