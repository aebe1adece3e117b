"""Our reactions: one sign under a message, in place of an earlier one.

The first sign, that a message was seen, needs no look at what is there; any other does after a restart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from channels.errors import NotPermitted, Rejected
from channels.message import Address, StatusReaction
from channels.slack.api import Api
from channels.slack.errors import error_code

EMOJI = {StatusReaction.SEEN: "eyes", StatusReaction.DONE: "white_check_mark", StatusReaction.FAILED: "x"}
MAX_REMEMBERED = 2000


ReactionNames = set[str]


@dataclass(slots=True)
class ReactionState:
    """Our signs under one message (None: not known yet); who changes them holds the lock."""

    names: set[str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reactions:
    """The signs we put; those of an earlier process are looked up."""

    def __init__(self, api: Api, *, bot_user_id: str) -> None:
        self._api = api
        self._bot_user_id = bot_user_id
        self._states: OrderedDict[tuple[str, str], ReactionState] = OrderedDict()

    async def set(self, address: Address, ts: str, reaction: StatusReaction | None) -> None:
        """Make the sign the only one of ours; raises ChannelError."""
        wanted = EMOJI[reaction] if reaction else None
        put = self._state_of(address, ts)
        async with put.lock:
            if put.names is None:
                put.names = (
                    set() if reaction is StatusReaction.SEEN else await self._fetch_reactions(address, ts)
                )
            if wanted and wanted not in put.names:
                await self._call("reactions.add", address, ts, wanted, accepted_error="already_reacted")
                put.names.add(wanted)
            for name in sorted(put.names - {wanted}):
                await self._call("reactions.remove", address, ts, name, accepted_error="no_reaction")
                put.names.discard(name)

    def _state_of(self, address: Address, ts: str) -> ReactionState:
        """Return what is remembered of a message; the longest unused is forgotten."""
        put = self._states.setdefault((address.room, ts), ReactionState())
        self._states.move_to_end((address.room, ts))
        if len(self._states) > MAX_REMEMBERED:
            self._states.popitem(last=False)
        return put

    async def _fetch_reactions(self, address: Address, ts: str) -> ReactionNames:
        """Ask what is there; where that is refused the first sign is, most likely."""
        try:
            answer = await self._api.call("reactions.get", {"channel": address.room, "timestamp": ts})
        except (Rejected, NotPermitted):
            return {EMOJI[StatusReaction.SEEN]}
        message = answer.get("message")
        found = message.get("reactions") if isinstance(message, dict) else None
        return {
            str(one["name"])
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict) and one.get("name") in EMOJI.values() and self._is_ours(one)
        }

    def _is_ours(self, reaction: dict[str, Any]) -> bool:
        users = reaction.get("users")
        return isinstance(users, list) and self._bot_user_id in users

    async def _call(self, method: str, address: Address, ts: str, name: str, *, accepted_error: str) -> None:
        try:
            await self._api.call(method, {"channel": address.room, "timestamp": ts, "name": name})
        except Rejected as error:
            if error_code(error) != accepted_error:
                raise
