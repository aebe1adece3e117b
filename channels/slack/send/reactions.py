"""Set the bot's status reaction on a message, replacing an earlier one.

SEEN is the first reaction and needs no lookup; any other looks up existing reactions after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from channels.errors import NotPermitted, Rejected
from channels.inbox.text import mapping, mappings
from channels.message import Address, StatusReaction
from channels.receiving.bounded_dict import BoundedDict
from channels.slack.api import Api
from channels.slack.errors import error_code

EMOJI = {StatusReaction.SEEN: "eyes", StatusReaction.DONE: "white_check_mark", StatusReaction.FAILED: "x"}
MAX_REMEMBERED = 2000


ReactionNames = set[str]


@dataclass(slots=True)
class ReactionState:
    """The bot's reactions to one message (None: not known yet); the lock guards changes."""

    names: set[str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reactions:
    """Sets the bot's reactions; those of an earlier process are looked up."""

    def __init__(self, api: Api, *, bot_user_id: str) -> None:
        self._api = api
        self._bot_user_id = bot_user_id
        self._states = BoundedDict[tuple[str, str], ReactionState](MAX_REMEMBERED)

    async def set(self, address: Address, ts: str, reaction: StatusReaction | None) -> None:
        """Make the reaction the bot's only one on the message; raises ChannelError."""
        name = EMOJI[reaction] if reaction else None
        state = self._state_of(address, ts)
        async with state.lock:
            if state.names is None:
                state.names = (
                    set() if reaction is StatusReaction.SEEN else await self._fetch_reactions(address, ts)
                )
            if name and name not in state.names:
                await self._call("reactions.add", address, ts, name, accepted_error="already_reacted")
                state.names.add(name)
            for old in sorted(state.names - {name}):
                await self._call("reactions.remove", address, ts, old, accepted_error="no_reaction")
                state.names.discard(old)

    async def add(self, address: Address, ts: str, name: str) -> None:
        """Add a reaction that status reactions leave alone; raises ChannelError."""
        await self._call("reactions.add", address, ts, name, accepted_error="already_reacted")

    def _state_of(self, address: Address, ts: str) -> ReactionState:
        """Return a message's state; the least recently used one is evicted."""
        state = self._states.get((address.room, ts)) or ReactionState()
        self._states[address.room, ts] = state
        return state

    async def _fetch_reactions(self, address: Address, ts: str) -> ReactionNames:
        """Return the bot's reactions; if Slack refuses, assume that SEEN is there."""
        try:
            answer = await self._api.call("reactions.get", {"channel": address.room, "timestamp": ts})
        except (Rejected, NotPermitted):
            return {EMOJI[StatusReaction.SEEN]}
        given = mappings(mapping(answer.get("message")).get("reactions"))
        return {str(one["name"]) for one in given if one.get("name") in EMOJI.values() and self._is_ours(one)}

    def _is_ours(self, reaction: Mapping[str, Any]) -> bool:
        users = reaction.get("users")
        return isinstance(users, list) and self._bot_user_id in users

    async def _call(self, method: str, address: Address, ts: str, name: str, *, accepted_error: str) -> None:
        try:
            await self._api.call(method, {"channel": address.room, "timestamp": ts, "name": name})
        except Rejected as error:
            if error_code(error) != accepted_error:
                raise
