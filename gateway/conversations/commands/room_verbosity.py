"""The command `/verbose`: whether a room shows which tools a turn runs; kept for the room, beyond `/new`."""

from __future__ import annotations

from collections.abc import Sequence

from channels.message import Address
from delivery.database.engine import Database
from delivery.deliveries.transactions import Transaction
from gateway.store.conversations import channel_state
from gateway.store.conversations.conversations import Conversation

PREFIX = "verbose:"
HELP = "`/verbose on` shows in this room which tools run, `/verbose off` hides them."
NOT_IN_A_CHAT = (
    "This conversation is in no chat room: its tool calls are always among its events, which clients show."
)
_WORDS = ("on", "off")


def _name(address: Address) -> str:
    return f"{PREFIX}{address.room}"[:200]


async def execute_verbose_command(tx: Transaction, conversation: Conversation, args: Sequence[str]) -> str:
    """Execute `/verbose` and return the reply."""
    if conversation.address is None:
        return NOT_IN_A_CHAT
    address = Address.decode(conversation.address)
    wanted = args[0].lower() if args else ""
    if wanted in _WORDS:
        await channel_state.save(tx.connection, address.channel, {_name(address): wanted})
        return "Tools are shown here while they run." if wanted == "on" else "Tools are not shown here."
    known = await channel_state.get(tx.connection, address.channel, _name(address))
    return f"It is {known} here. {HELP}" if known else HELP


class RoomVerbosity:
    """Reads what rooms want."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, address: Address) -> bool | None:
        """Return whether a room wants to see the tools of turns; None: the platform's default."""
        async with self._database.read() as connection:
            known = await channel_state.get(connection, address.channel, _name(address))
        return None if known is None else known == "on"
