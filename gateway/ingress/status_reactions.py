"""Signs: our reactions to people's messages, which say that one was seen and how its turn ended.

Best effort: nothing waits for a sign, none is tried twice, and none outlives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from channels.message import Address, StatusReaction
from delivery.database.engine import Database, DatabaseUnavailable
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn

log = structlog.get_logger(__name__)

MAX_QUEUED = 1000
"""Signs that may wait; more are left out."""

React = Callable[[Address, str, StatusReaction], Awaitable[None]]
"""Put a sign under a message; never raises what the platform says."""

_END_REACTIONS = {
    TurnState.COMPLETED: StatusReaction.DONE,
    TurnState.FAILED: StatusReaction.FAILED,
    TurnState.CANCELLED: StatusReaction.FAILED,
}


class StatusReactions:
    """Gives signs one after the other. `wanted`: some channel here shows signs at all."""

    def __init__(self, database: Database, react: React, is_enabled: Callable[[], bool]) -> None:
        self._database = database
        self._react = react
        self._is_enabled = is_enabled
        self._queue: asyncio.Queue[tuple[Address, str, StatusReaction] | tuple[Turn, StatusReaction]] = (
            asyncio.Queue(MAX_QUEUED)
        )

    @property
    def queued(self) -> int:
        """How many signs are still to be given."""
        return self._queue.qsize()

    def on_received(self, address: Address, platform_id: str | None) -> None:
        """Show soon that a message was taken."""
        if platform_id and self._is_enabled() and not self._queue.full():
            self._queue.put_nowait((address, platform_id, StatusReaction.SEEN))

    def on_turn_ended(self, turn: Turn, state: TurnState) -> None:
        """Show soon under what a turn answered how it has ended."""
        if turn.trigger == "message" and self._is_enabled() and not self._queue.full():
            self._queue.put_nowait((turn, _END_REACTIONS[state]))

    async def run(self, stop: asyncio.Event) -> None:
        """Give the signs until stopped."""
        ending = asyncio.create_task(stop.wait())
        while not stop.is_set():
            asking = asyncio.create_task(self._queue.get())
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                await self._react_once(asking.result())
            asking.cancel()
        ending.cancel()

    async def _react_once(
        self, item: tuple[Address, str, StatusReaction] | tuple[Turn, StatusReaction]
    ) -> None:
        try:
            if len(item) == 3:  # noqa: PLR2004 - a message's own address is known
                await self._react(*item)
            else:
                await self._react_to_turn(*item)
        except DatabaseUnavailable as error:
            log.debug("reactions.skipped", error=str(error))
        except Exception:  # the outermost loop of signs: the next ones must be given all the same
            log.exception("reactions.failed")

    async def _react_to_turn(self, turn: Turn, reaction: StatusReaction) -> None:
        async with self._database.read() as connection:
            conversation = await conversations.get_by_id(connection, turn.conversation)
            answered = await messages.list_for_turn(connection, turn.id)
        if conversation is None or conversation.address is None:
            return
        address = Address.decode(conversation.address)
        for message in answered:
            if message.platform_id:
                await self._react(address, message.platform_id, reaction)
