"""A channel for Loft, an imaginary platform with plain text, long polls and a call per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from channels.errors import Undeliverable
from channels.inbox.checks import probe_with
from channels.inbox.json_api import JsonApi, connecting_json
from channels.inbox.polling import UpdateFeed
from channels.inbox.receiver import open_with
from channels.inbox.settings import TokenSettings
from channels.inbox.text import clean, unix_time
from channels.inbox.updates import find_mention, parse_update
from channels.message import Address, Author, IgnoredUpdate, Reply, RoomKind, SentMessage, Update
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Sender


class LoftSettings(TokenSettings):
    """The settings of a Loft bot: `url`, `token`, and one of its own."""

    poll_seconds: int = Field(default=30, ge=1, le=60, description="Seconds a poll waits.")


async def identify(api: JsonApi) -> str:
    """Return the bot's id."""
    return str((await api.call("GET", "/me"))["id"])


def decode(raw: Any, *, channel: str, bot: str) -> Update | IgnoredUpdate:
    """Return the update that Loft describes; the key is Loft's number of the update."""
    if raw["author"] == bot:
        return IgnoredUpdate(reason="the bot's own message")
    mention, text = find_mention(clean(raw["text"]), bot)
    common = {
        "key": str(raw["number"]),
        "address": Address(channel=channel, room=raw["room"], thread=raw["thread"]),
        "author": Author(id=raw["author"]),
        "sent_at": unix_time(raw["time"] * 1000),
        "room": RoomKind.GROUP,
        "platform_id": raw["id"],
    }
    return parse_update(text, common, mention=mention, edited=raw["edited"])


class LoftFeed(UpdateFeed):
    """Long polling: each poll acknowledges the updates up to `after`, so no state is kept."""

    pause = 0.0

    def __init__(self, api: JsonApi, settings: LoftSettings, _state: ChannelState) -> None:
        self._api = api
        self._seconds = settings.poll_seconds
        self._after = 0

    async def fetch(self) -> Sequence[Any]:
        """Return the updates after the last one that was stored, or none after `poll_seconds`."""
        query = {"after": self._after, "wait": self._seconds}
        found = await self._api.call("GET", "/updates", params=query, timeout=self._seconds + 10)
        return list(found)

    async def confirm(self, raw: Any) -> None:
        """Ask for what comes after this update from now on."""
        self._after = raw["number"]


class LoftSender(Sender):
    """Sends plain text."""

    def __init__(self, api: JsonApi) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message by one request."""
        body = {"room": address.room, "thread": address.thread, "text": reply.text}
        return SentMessage(platform_id=(await self._api.call("POST", "/messages", json=body))["id"])


connect = connecting_json({403: Undeliverable})  # the bot is not in the room

plugin = ChannelPlugin(
    name="loft",
    title="Loft",
    features=frozenset({ChannelFeature.EDITS}),
    limits=ChannelLimits(text=4000),
    settings=LoftSettings,
    open=open_with(connect, identify, decode, feed=LoftFeed, sender=LoftSender),
    probe=probe_with(connect, identify, operator="Create a new token."),
    account=lambda settings: settings.account,
)
