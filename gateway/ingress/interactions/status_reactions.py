"""Status reactions: the bot's reactions to messages, which show that one was received and how its turn ended.

Best effort: nothing waits for a reaction, none is retried, and none survives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from channels.message import Address, StatusReaction
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries import queries
from delivery.fair_queue import FairQueue
from delivery.fair_scheduler import PoolSize
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn

log = structlog.get_logger(__name__)

MAX_QUEUED = 1000
"""Reactions of one account that may be queued; further ones are skipped."""

ACCOUNTS_AT_ONCE = 8
"""Accounts whose reactions are added at once, so that a slow platform of one delays no other."""

React = Callable[[Address, str, StatusReaction], Awaitable[None]]
"""Add a reaction to a message; never raises a platform's error."""

_QueuedReaction = Callable[[], Awaitable[None]]

_END_REACTIONS = {
    TurnState.COMPLETED: StatusReaction.DONE,
    TurnState.FAILED: StatusReaction.FAILED,
    TurnState.CANCELLED: StatusReaction.FAILED,
}


class StatusReactions:
    """Adds the reactions of an account one after the other, and those of several accounts at once.

    `is_enabled`: some channel of this process shows them. `is_single`: a message of a channel has one
    reaction of the bot, so that the status must not replace what the agent added.
    """

    def __init__(
        self,
        database: Database,
        react: React,
        is_enabled: Callable[[], bool],
        is_single: Callable[[str], bool] = lambda _channel: False,
    ) -> None:
        self._database = database
        self._react = react
        self._is_enabled = is_enabled
        self._is_single = is_single
        self._queue = FairQueue[_QueuedReaction](
            PoolSize(places=ACCOUNTS_AT_ONCE, share=1 / ACCOUNTS_AT_ONCE)
        )

    def queued(self, account: str) -> int:
        """Return how many reactions of an account are queued."""
        return self._queue.waiting(account)

    def on_received(self, account: str, address: Address, platform_id: str | None) -> None:
        """Queue a reaction that a message was received."""
        if platform_id:
            self._put(account, partial(self._react, address, platform_id, StatusReaction.SEEN))

    def on_turn_ended(self, turn: Turn, state: TurnState) -> None:
        """Queue a reaction to a turn's messages that shows how the turn ended."""
        if turn.trigger == "message":
            self._put(turn.account, partial(self._react_to_turn, turn, _END_REACTIONS[state]))

    def _put(self, account: str, reaction: _QueuedReaction) -> None:
        if self._is_enabled() and self.queued(account) < MAX_QUEUED:
            self._queue.put(account, reaction)

    async def run(self, stop: asyncio.Event) -> None:
        """Add queued reactions until stopped; those that are queued then are skipped."""
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work()) for _ in range(ACCOUNTS_AT_ONCE)]
            await stop.wait()
            for worker in workers:
                worker.cancel()

    async def _work(self) -> None:
        while True:
            async with self._queue.take() as entry:
                if entry is None:
                    return
                await self._react_once(entry[1])

    async def _react_once(self, reaction: _QueuedReaction) -> None:
        try:
            await reaction()
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
        if self._is_single(address.channel) and await self._has_reacted(turn):
            return
        for message in answered:
            if message.platform_id:
                await self._react(address, message.platform_id, reaction)

    async def _has_reacted(self, turn: Turn) -> bool:
        """Return whether the agent reacted to a message itself."""
        async with self._database.read() as connection:
            return await queries.has_reacted(connection, turn.id)
