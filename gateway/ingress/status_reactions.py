"""Status reactions: the bot's reactions to messages, which show that one was received and how its turn ended.

Best effort: nothing waits for a reaction, none is retried, and none survives the process.
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
"""Reactions that may be queued; further ones are skipped."""

React = Callable[[Address, str, StatusReaction], Awaitable[None]]
"""Add a reaction to a message; never raises a platform's error."""

_END_REACTIONS = {
    TurnState.COMPLETED: StatusReaction.DONE,
    TurnState.FAILED: StatusReaction.FAILED,
    TurnState.CANCELLED: StatusReaction.FAILED,
}


class StatusReactions:
    """Adds reactions one after the other. `is_enabled`: some channel of this process shows them."""

    def __init__(self, database: Database, react: React, is_enabled: Callable[[], bool]) -> None:
        self._database = database
        self._react = react
        self._is_enabled = is_enabled
        self._queue: asyncio.Queue[tuple[Address, str, StatusReaction] | tuple[Turn, StatusReaction]] = (
            asyncio.Queue(MAX_QUEUED)
        )

    @property
    def queued(self) -> int:
        """Return how many reactions are queued."""
        return self._queue.qsize()

    def on_received(self, address: Address, platform_id: str | None) -> None:
        """Queue a reaction that a message was received."""
        if platform_id and self._is_enabled() and not self._queue.full():
            self._queue.put_nowait((address, platform_id, StatusReaction.SEEN))

    def on_turn_ended(self, turn: Turn, state: TurnState) -> None:
        """Queue a reaction to a turn's messages that shows how the turn ended."""
        if turn.trigger == "message" and self._is_enabled() and not self._queue.full():
            self._queue.put_nowait((turn, _END_REACTIONS[state]))

    async def run(self, stop: asyncio.Event) -> None:
        """Add queued reactions until stopped."""
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
        except Exception:  # the outermost loop of the queue: the next reaction must be added
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
