"""Commands that were acknowledged and still show "is thinking…": the first answer takes that place.

Kept in memory only: an interaction's token is a credential of fifteen minutes. After a restart, and after
its time, the answer is an ordinary message of the bot.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from channels.message import Address

LIFE = 14 * 60.0
"""Seconds a token is used; Discord ends it after fifteen minutes."""

MOST = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class Place:
    """A message that waits for its text; `token` answers in the application's name."""

    application: str
    token: str
    until: float


class Deferred:
    """The places that wait, by conversation, and those taken, by the key of the reply that took them."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Place] = OrderedDict()
        self._taken: OrderedDict[str, Place] = OrderedDict()

    def add(self, address: Address, *, application: str, token: str) -> None:
        """Remember that the next answer in this conversation belongs to a command."""
        self._waiting[address.key] = Place(application, token, time.monotonic() + LIFE)
        _bound(self._waiting)

    def take(self, address: Address, key: str) -> Place | None:
        """Return the place for a reply: the same one for the same reply, each time it is tried."""
        place = self._taken.get(key) or self._waiting.pop(address.key, None)
        if place is None or place.until < time.monotonic():
            return None
        self._taken[key] = place
        _bound(self._taken)
        return place

    def drop(self, key: str) -> None:
        """Forget a place that Discord no longer knows."""
        self._taken.pop(key, None)


def _bound(places: OrderedDict[str, Place]) -> None:
    while len(places) > MOST:
        places.popitem(last=False)
