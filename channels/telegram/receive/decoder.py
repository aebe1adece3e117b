"""Decode updates, and ask Telegram where one does not say whether it is a comment on a channel's post."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from channels.errors import ChannelError
from channels.message import ButtonPress, Command, IgnoredUpdate, Message, RoomKind, Update
from channels.port import RECENT_PREFIX, ChannelState
from channels.receiving.bounded_dict import BoundedDict
from channels.telegram.api import Api
from channels.telegram.payloads import COMMENTS, Bot
from channels.telegram.receive import codec

TALK_PREFIX = f"{RECENT_PREFIX}talk:"
MAX_REMEMBERED = 10_000
TIMEOUT_SECONDS = 5.0
RECHECK_SECONDS = 600.0
"""Seconds for which it is remembered whether a group has a channel."""


log = structlog.get_logger(__name__)


class Decoder:
    """Decodes the updates of one bot.

    `_talks` are chains of replies that are no comments: their first messages were received or shown. In
    groups that discuss a channel's posts, they are also in the channel's state, for restarts and replicas.
    """

    def __init__(self, api: Api, *, channel: str, bot: Bot, state: ChannelState) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._state = state
        self._has_channel = BoundedDict[str, tuple[float, bool]](MAX_REMEMBERED)
        self._talks = BoundedDict[str, None](MAX_REMEMBERED)

    async def decode(self, updates: Sequence[object]) -> Update | IgnoredUpdate:
        """Decode one update, or those of an album; a chain is no thread while Telegram cannot be asked."""
        decoded = codec.decode_album(updates, channel=self._channel, bot=self._bot)
        if not isinstance(decoded, Message | Command | ButtonPress) or decoded.room is RoomKind.DIRECT:
            return decoded
        first, is_shown = codec.find_chain(updates[0])
        if decoded.address.thread or await self._is_talk(decoded.address.room, first, is_shown=is_shown):
            return decoded
        return replace(decoded, address=replace(decoded.address, thread=f"{COMMENTS}{first}"))

    async def _is_talk(self, room: str, first: int, *, is_shown: bool) -> bool:
        """Return whether a chain is no comment, and remember that; raises DatabaseUnavailable."""
        chain = f"{TALK_PREFIX}{room}/{first}"
        if chain in self._talks:
            return True
        if not await self._is_discussion(room):
            if not is_shown:
                return True
        elif is_shown:
            await self._state.set({chain: "1"})
        elif not await self._state.get(chain):
            return False
        self._talks[chain] = None
        return True

    async def _is_discussion(self, room: str) -> bool:
        """Return whether a group discusses a channel's posts (`linked_chat_id` of getChat)."""
        now = asyncio.get_running_loop().time()
        asked_at, has_channel = self._has_channel.get(room, (now - RECHECK_SECONDS, False))
        if now - asked_at < RECHECK_SECONDS:
            return has_channel
        try:
            chat = await self._api.call("getChat", {"chat_id": room}, timeout=TIMEOUT_SECONDS)
        except ChannelError as error:
            log.warning("telegram.group_lookup_failed", error=str(error))
            return has_channel
        has_channel = isinstance(chat, dict) and bool(chat.get("linked_chat_id"))
        self._has_channel[room] = (now, has_channel)
        return has_channel
