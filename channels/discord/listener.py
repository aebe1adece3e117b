"""What each event of the gateway means for us: places are learned, history is read, updates accepted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from channels.discord import codec
from channels.discord.api import Api, path
from channels.discord.deferred import Deferred
from channels.discord.history import History, Places
from channels.discord.interactions import reaction
from channels.errors import ChannelError
from channels.message import Ignored, Message, Update
from channels.port import Accept

CALLBACK_PATIENCE = 3.0
"""Seconds Discord waits for the first reaction to an interaction."""

Raw = Mapping[str, Any]
log = logging.getLogger(__name__)


class _NotStoredError(Exception):
    """An update could not be accepted; its event has to be taken again."""


class Listener:
    """Takes events, one after the other."""

    def __init__(self, api: Api, *, channel: str, bot: codec.Bot, deferred: Deferred, minutes: int) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._deferred = deferred
        self._places = Places(api)
        self._history = History(api, minutes)

    async def take(self, event: Raw, accept: Accept) -> bool:
        """Take one event; False when something of it could not be stored. Raises ChannelError.

        An event that makes no sense is left out: it never ends the connection, nor comes again.
        """
        try:
            await self._follow(event, accept)
        except _NotStoredError:
            return False
        except ChannelError:
            raise
        except Exception:  # whatever is odd about an event, those after it count
            log.exception("discord: an event that makes no sense is left out: %s", str(event.get("t"))[:80])
        return True

    async def _follow(self, event: Raw, accept: Accept) -> None:
        content = event.get("d")
        if not isinstance(content, dict):
            return
        match event.get("t"):
            case "READY":
                await self._begin(accept)
            case "GUILD_CREATE":
                await self._catch_up(content, accept)
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
                self._places.learn(content)
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                await self._hear(event, content, accept)
            case "INTERACTION_CREATE":
                await self._react(event, content, accept)

    async def _begin(self, accept: Accept) -> None:
        self._history.begin()
        for channel in list(self._history.private):
            await self._read(channel, None, 0, accept)

    async def _catch_up(self, guild: Raw, accept: Accept) -> None:
        """Read the channels of a server that hold more than we know; nothing from before we came."""
        joined = _joined(guild)
        for kind in ("channels", "threads"):
            found = guild.get(kind)
            for channel in found if isinstance(found, list) else ():
                self._places.learn(channel)
                if isinstance(channel, dict) and self._history.wants(channel, joined):
                    await self._read(str(channel["id"]), guild.get("id"), joined, accept)

    async def _read(
        self, channel: str, guild: object, joined: int, accept: Accept, *, before: int | None = None
    ) -> None:
        async for message in self._history.messages(channel, joined):
            number = message["id"]
            if (before is None or int(number) < before) and not self._history.was_told(number):
                raw = {**message, "channel_id": channel, "guild_id": guild}
                await self._tell({"t": "MESSAGE_CREATE", "d": await self._placed(raw)}, accept)
                self._history.saw(channel, number, read=True)

    async def _hear(self, event: Raw, message: Raw, accept: Accept) -> None:
        number, channel = message.get("id"), message.get("channel_id")
        if not (isinstance(number, str) and isinstance(channel, str) and number.isdecimal()):
            log.warning("discord: a message without an id is left out")
            return
        is_new = event.get("t") == "MESSAGE_CREATE"
        if is_new and self._history.was_told(number):
            return
        if message.get("guild_id") is None and is_new:
            await self._open_private(channel, int(number), accept)
        await self._tell({**event, "d": await self._placed(message)}, accept)
        if is_new:
            self._history.saw(channel, number)

    async def _open_private(self, channel: str, before: int, accept: Accept) -> None:
        """Private channels are not listed: one is read when something is said in it again."""
        self._history.private[channel] = None
        if len(self._history.private) > 1000:  # noqa: PLR2004 - as many as are read after a downtime
            self._history.private.popitem(last=False)
        if self._history.is_unread(channel):
            await self._read(channel, None, 0, accept, before=before)

    async def _placed(self, message: Raw) -> Raw:
        """Add what kind of place a message was said in."""
        if message.get("guild_id") is None:
            return message
        return {**message, "channel": await self._places.find(str(message["channel_id"]))}

    async def _tell(self, event: Raw, accept: Accept) -> Update | Ignored:
        decoded = codec.decode(event, channel=self._channel, bot=self._bot)
        if isinstance(decoded, Ignored):
            log.debug("discord: ignored %s", decoded.reason)
            return decoded
        try:
            await accept(decoded)
        except Exception as error:
            log.warning("discord: update %s is not stored and comes again: %r", decoded.key, error)
            raise _NotStoredError from error
        return decoded

    async def _react(self, event: Raw, interaction: Raw, accept: Accept) -> None:
        """Accept, then tell Discord that the answer follows; if that fails the answer still comes."""
        decoded = await self._tell(event, accept)
        body = reaction(interaction, decoded)
        number, token = interaction.get("id"), interaction.get("token")
        if body is None or not (isinstance(number, str) and isinstance(token, str)):
            return
        where = path("interactions", number, token, "callback")
        try:
            await self._api.call(
                "POST", where, name="react", body=body, as_bot=False, patience=CALLBACK_PATIENCE
            )
        except ChannelError as error:
            log.warning("discord: an interaction was taken and could not be acknowledged: %s", error)
            return
        if isinstance(decoded, Message):
            application = str(interaction.get("application_id"))
            self._deferred.add(decoded.address, application=application, token=token)


def _joined(guild: Raw) -> int:
    try:
        return codec.snowflake(datetime.fromisoformat(str(guild.get("joined_at"))))
    except (ValueError, OverflowError):
        return 0
