"""What events usually tell about a room or server; a platform is asked once for what no event told."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from channels.errors import ChannelError
from channels.receiving.attempts import attempt, concerns_one_room
from channels.receiving.bounded_dict import BoundedDict

MAX_REMEMBERED = 10_000
ASK_AGAIN_SECONDS = 30.0
"""Seconds in which the platform is not asked about the same place after the attempts have failed."""

_Fact = TypeVar("_Fact")

log = structlog.get_logger(__name__)


class AskedOnce(Generic[_Fact]):
    """Facts about the rooms or servers of one bot, by their ids."""

    def __init__(
        self, ask: Callable[[str], Awaitable[_Fact]], *, never: tuple[type[ChannelError], ...]
    ) -> None:
        """`never` are the errors after which the platform is not asked again."""
        self._ask = ask
        self._never = never
        self._facts = BoundedDict[str, _Fact | None](MAX_REMEMBERED)
        self._failed_at = BoundedDict[str, float](MAX_REMEMBERED)

    def remember(self, place: str, fact: _Fact | None) -> None:
        """Remember a fact of an event."""
        self._facts[place] = fact

    def known(self, place: str) -> _Fact | None:
        """Return a fact without asking."""
        return self._facts.get(place)

    async def get(self, place: str) -> _Fact | None:
        """Return a fact; None if the platform does not state it, or not now.

        Raises ChannelError if the platform states it of no place.
        """
        if place not in self._facts and self._may_ask(place):
            try:
                self.remember(place, await attempt(lambda: self._ask(place)))
            except self._never:
                self.remember(place, None)
            except ChannelError as error:
                if not concerns_one_room(error):
                    raise
                log.warning("channel.place_unknown", place=place, error=str(error))
                self._failed_at[place] = time.monotonic()
        return self.known(place)

    def _may_ask(self, place: str) -> bool:
        return time.monotonic() - self._failed_at.get(place, float("-inf")) >= ASK_AGAIN_SECONDS
