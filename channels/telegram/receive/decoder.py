"""Decode updates, and ask Telegram where one does not say whether it is a comment on a channel's post."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from channels.errors import ChannelError
from channels.inbox.text import integer_id, mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discussion:
    """What getChat tells of a group: whether it discusses a channel, and the pinned post of it (0: none)."""

    asked_at: float = float("-inf")
    has_channel: bool = False
    pinned_post: int = 0


class Decoder:
    """Decodes the updates of one bot.

    `_talks` are chains of replies that are no comments: their first messages were received or shown, or are
    later than all posts. In groups that discuss a channel's posts, they are also in the channel's state, for
    restarts and replicas.
    """

    def __init__(self, api: Api, *, channel: str, bot: Bot, state: ChannelState) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._state = state
        self._discussions = BoundedDict[str, _Discussion](MAX_REMEMBERED)
        self._comments = BoundedDict[tuple[str, int], None](MAX_REMEMBERED)
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
        chain, now = f"{TALK_PREFIX}{room}/{first}", asyncio.get_running_loop().time()
        if chain in self._talks:
            return True
        if not (await self._get_discussion(room, asked_after=now - RECHECK_SECONDS)).has_channel:
            if not is_shown:
                return True
        elif is_shown or not await self._state.get(chain):
            if not (is_shown or await self._is_later_than_posts(room, first, now)):
                return False
            await self._state.set({chain: "1"})
        self._talks[chain] = None
        return True

    async def _is_later_than_posts(self, room: str, first: int, now: float) -> bool:
        """Return whether a chain began after the channel's last post, which Telegram pins in the group."""
        if (room, first) in self._comments:
            return False
        last_post = (await self._get_discussion(room, asked_after=now)).pinned_post
        if not 0 < last_post < first:
            self._comments[room, first] = None
            return False
        return True

    async def _get_discussion(self, room: str, *, asked_after: float) -> _Discussion:
        """Return what getChat told after a time, or tells now; else only that there was a channel."""
        known = self._discussions.get(room, _Discussion())
        if known.asked_at >= asked_after:
            return known
        asked_at = asyncio.get_running_loop().time()
        try:
            chat = mapping(await self._api.call("getChat", {"chat_id": room}, timeout=TIMEOUT_SECONDS))
        except ChannelError as error:
            log.warning("telegram.group_lookup_failed", error=str(error))
            return _Discussion(has_channel=known.has_channel)
        pinned = mapping(chat.get("pinned_message"))
        post = integer_id(pinned, "message_id") if pinned.get("is_automatic_forward") is True else 0
        has_channel = bool(chat.get("linked_chat_id"))
        self._discussions[room] = _Discussion(asked_at=asked_at, has_channel=has_channel, pinned_post=post)
        return self._discussions[room]
