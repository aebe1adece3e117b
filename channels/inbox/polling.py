"""Receive by asking a platform for updates again and again."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from channels.errors import ChannelError, RateLimited
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, ChannelState, ReceiverStatus

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between attempts while the platform is unreachable or updates cannot be stored."""

RECEIVING, INTERRUPTED = True, False

_Loaded = TypeVar("_Loaded")

Decode = Callable[[Any], Iterable[Update | IgnoredUpdate]]

log = structlog.get_logger(__name__)


class UpdateFeed(Protocol):
    """A platform's updates in their order; `pause` is the seconds between two questions."""

    pause: float

    async def prepare(self) -> None:
        """Do what comes before the first question, such as to register a webhook; raises ChannelError."""
        return

    @abstractmethod
    async def fetch(self) -> Sequence[Any]:
        """Return raw updates that were not confirmed yet, oldest first; raises ChannelError."""

    @abstractmethod
    async def confirm(self, raw: Any) -> None:
        """Record that an update was stored, so that it is not fetched again.

        Raises any Exception if that fails: it is logged, and the update is fetched again, with the same key.
        """


class PositionFeed(UpdateFeed):
    """A feed of what a platform keeps, from a position on that is stored in the channel's state.

    A new channel begins with what comes after its first start.
    """

    position_name: str

    def __init__(self, state: ChannelState, pause: float) -> None:
        self._state = state
        self.pause = pause

    async def start(self) -> str:
        """Return the position, which another replica may have moved."""
        stored = await self._state.get(self.position_name)
        return stored or await self.move(await self.newest())

    async def move(self, position: str) -> str:
        """Store the position."""
        await self._state.set({self.position_name: position})
        return position

    @abstractmethod
    async def newest(self) -> str:
        """Return the position after all that there is now; raises ChannelError."""


async def poll(
    feed: UpdateFeed, decode: Decode, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event
) -> None:
    """Fetch and accept until `stop`; raises the error that only an operator can fix."""
    failures, is_prepared = 0, False
    while not stop.is_set():
        try:
            if not is_prepared:
                await feed.prepare()
                is_prepared = True
            updates = await feed.fetch()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            receiving(INTERRUPTED, str(error))
            log.warning("channel.receiving_interrupted", error=str(error))
            await asyncio.sleep(error.retry_after if isinstance(error, RateLimited) else _delay(failures))
            failures += 1
            continue
        receiving(RECEIVING)
        stored = await _accept_all(feed, updates, decode, accept, stop)
        await asyncio.sleep(feed.pause if stored else _delay(failures))
        failures = 0 if stored else failures + 1


async def _accept_all(
    feed: UpdateFeed, updates: Sequence[Any], decode: Decode, accept: Accept, stop: asyncio.Event
) -> bool:
    """Accept and confirm in order; return False at the first one that cannot be stored."""
    for raw in updates:
        if stop.is_set() or not await accept_all(decode(raw), accept):
            return False
        try:
            await feed.confirm(raw)
        except Exception as error:  # noqa: BLE001 - the position is in the same database as the updates
            log.warning("channel.position_not_stored", error=repr(error))
            return False
    return True


async def load_in_order(rows: Iterable[Any], load: Callable[[Any], Awaitable[_Loaded]]) -> list[_Loaded]:
    """Load rows one after the other; an error ends the list, and is raised if it is the first."""
    loaded: list[_Loaded] = []
    try:
        for row in rows:
            loaded.append(await load(row))  # noqa: PERF401 - what was loaded before an error is kept
    except ChannelError as error:
        if not loaded:
            raise
        log.warning("channel.updates_not_loaded", loaded=len(loaded), error=str(error))
    return loaded


async def or_nothing(answer: Awaitable[_Loaded]) -> _Loaded | None:
    """Return what a platform answers, None for what it does not have any more; raises other ChannelErrors."""
    try:
        return await answer
    except ChannelError as error:
        if error.remedy != "give_up":
            raise
        log.warning("channel.update_lost", error=str(error))
        return None


async def accept_all(updates: Iterable[Update | IgnoredUpdate], accept: Accept) -> bool:
    """Accept updates; return whether the platform may be told that they are stored."""
    for update in updates:
        if isinstance(update, IgnoredUpdate):
            log.debug("channel.update_ignored", reason=update.reason)
            continue
        try:
            await accept(update)
        except Exception as error:  # noqa: BLE001 - whatever the reason, the platform must keep it
            log.warning("channel.update_not_stored", key=update.key, error=repr(error))
            return False
    return True


def _delay(failures: int) -> float:
    return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
