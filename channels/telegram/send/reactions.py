"""Set status reactions as Telegram's standard emoji, and remember for a while which ones a chat refused."""

from __future__ import annotations

from channels.errors import Rejected
from channels.message import Address, StatusReaction
from channels.receiving.expiring_set import ExpiringSet
from channels.telegram.api import Api

EMOJI = {
    StatusReaction.SEEN: ("\N{EYES}",),
    StatusReaction.DONE: ("\N{THUMBS UP SIGN}", "\N{OK HAND SIGN}"),
    StatusReaction.FAILED: ("\N{THUMBS DOWN SIGN}", "\N{BROKEN HEART}"),
}
"""Emoji of the list in ReactionTypeEmoji; the later ones are for chats that disallow the first."""

MAX_REFUSALS = 10_000


class Reactions:
    """Sets the bot's reactions on messages."""

    def __init__(self, api: Api, *, refused_seconds: float = 3600.0) -> None:
        self._api = api
        self._refused = ExpiringSet[tuple[str, str]](MAX_REFUSALS, seconds=refused_seconds)

    async def set(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set a reaction, replacing an earlier one; raises Rejected if the chat allows none of them."""
        if reaction is None:
            await self._set(address.room, platform_id, ())
            return
        for emoji in EMOJI[reaction]:
            if (address.room, emoji) in self._refused:
                continue
            try:
                await self._set(address.room, platform_id, ({"type": "emoji", "emoji": emoji},))
            except Rejected as error:
                if "REACTION" not in str(error).upper().partition(": ")[2]:
                    raise
                self._refused.add((address.room, emoji))
            else:
                return
        raise Rejected(f"setMessageReaction: this chat allows no emoji for the reaction {reaction.value!r}")

    async def add(self, address: Address, platform_id: str, emoji: str) -> None:
        """Set an emoji; it replaces the bot's other one."""
        await self._set(address.room, platform_id, ({"type": "emoji", "emoji": emoji},))

    async def _set(self, room: str, platform_id: str, reaction: tuple[dict[str, str], ...]) -> None:
        message = {"chat_id": room, "message_id": platform_id}
        await self._api.call("setMessageReaction", {**message, "reaction": list(reaction)})
