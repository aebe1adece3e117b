"""Signs: our reactions to people's messages, which say that one was seen and how its turn ended.

Best effort: nothing waits for a sign, none is tried twice, and none outlives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from channels.message import Address, Sign
from delivery.database.engine import Database, Unavailable
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn

log = structlog.get_logger(__name__)

MOST = 1000
"""Signs that may wait; more are left out."""

React = Callable[[Address, str, Sign], Awaitable[None]]
"""Put a sign under a message; never raises what the platform says."""

_SIGNS = {TurnState.COMPLETED: Sign.DONE, TurnState.FAILED: Sign.FAILED, TurnState.CANCELLED: Sign.FAILED}


class Signs:
    """Gives signs one after the other. `wanted`: some channel here shows signs at all."""

    def __init__(self, database: Database, react: React, wanted: Callable[[], bool]) -> None:
        self._database = database
        self._react = react
        self._wanted = wanted
        self._asked: asyncio.Queue[tuple[Address, str, Sign] | tuple[Turn, Sign]] = asyncio.Queue(MOST)

    @property
    def waiting(self) -> int:
        """How many signs are still to be given."""
        return self._asked.qsize()

    def seen(self, address: Address, platform_id: str | None) -> None:
        """Show soon that a message was taken."""
        if platform_id and self._wanted() and not self._asked.full():
            self._asked.put_nowait((address, platform_id, Sign.SEEN))

    def ended(self, turn: Turn, state: TurnState) -> None:
        """Show soon under what a turn answered how it has ended."""
        if turn.trigger == "message" and self._wanted() and not self._asked.full():
            self._asked.put_nowait((turn, _SIGNS[state]))

    async def run(self, stop: asyncio.Event) -> None:
        """Give the signs until stopped."""
        ending = asyncio.create_task(stop.wait())
        while not stop.is_set():
            asking = asyncio.create_task(self._asked.get())
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                await self._give(asking.result())
            asking.cancel()
        ending.cancel()

    async def _give(self, asked: tuple[Address, str, Sign] | tuple[Turn, Sign]) -> None:
        try:
            if len(asked) == 3:  # noqa: PLR2004 - a message's own address is known
                await self._react(*asked)
            else:
                await self._give_all(*asked)
        except Unavailable as error:
            log.debug("signs.left_out", error=str(error))
        except Exception:  # the outermost loop of signs: the next ones must be given all the same
            log.exception("signs.failed")

    async def _give_all(self, turn: Turn, sign: Sign) -> None:
        async with self._database.read() as connection:
            conversation = await conversations.by_id(connection, turn.conversation)
            answered = await messages.of_turn(connection, turn.id)
        if conversation is None or conversation.address is None:
            return
        address = Address.load(conversation.address)
        for message in answered:
            if message.platform_id:
                await self._react(address, message.platform_id, sign)
