"""A channel for Loft, an imaginary platform with plain text, long polling and one HTTP call per message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import ClientSession
from pydantic import Field

from channels.errors import Undeliverable
from channels.inbox.calls import connecting
from channels.inbox.checks import probe_with
from channels.inbox.commands import parse_slash
from channels.inbox.json_api import JsonApi
from channels.inbox.polling import UpdateFeed
from channels.inbox.receiver import InboxReceiver
from channels.inbox.settings import Secret, token_digest
from channels.inbox.text import clean
from channels.inbox.updates import make_update
from channels.message import Address, Author, IgnoredUpdate, Reply, RoomKind, SentMessage, Update
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection, Sender
from channels.settings import ChannelSettings
from egress.guard import EgressGuard
from egress.urls import EndpointUrl

POLL_SECONDS = 30


class LoftSettings(ChannelSettings):
    """The settings of a Loft bot."""

    url: EndpointUrl = Field(description="The address of the Loft server.")
    token: Secret = Field(description="The bot's token.")


def make_api(session: ClientSession, settings: LoftSettings) -> JsonApi:
    """Return Loft's API; it answers 403 if the bot is not in the room."""
    return JsonApi(session, settings.url, settings.token, {403: Undeliverable})


async def identify(api: JsonApi) -> str:
    """Return the bot's id."""
    return str((await api.call("GET", "/me"))["id"])


def decode(raw: Any, *, channel: str, bot: str) -> Update | IgnoredUpdate:
    """Return the update that Loft describes; the key is Loft's number of the update."""
    if raw["author"] == bot:
        return IgnoredUpdate(reason="the bot's own message")
    text, common = clean(raw["text"]), {
        "key": str(raw["number"]),
        "address": Address(channel=channel, room=raw["room"], thread=raw["thread"]),
        "author": Author(id=raw["author"]),
        "sent_at": datetime.fromtimestamp(raw["time"], UTC),
        "room": RoomKind.GROUP,
        "platform_id": raw["id"],
    }  # fmt: skip
    return make_update(text, parse_slash(text), common, mention="@bot" in text, edited=raw["edited"])


class LoftFeed(UpdateFeed):
    """Long polling: each question acknowledges the updates up to `after`."""

    pause = 0.0

    def __init__(self, api: JsonApi) -> None:
        self._api, self._done = api, 0

    async def fetch(self) -> Sequence[Any]:
        """Return the updates after the last one that was stored, or none after 30 seconds."""
        query = {"after": self._done, "wait": POLL_SECONDS}
        found = await self._api.call("GET", "/updates", params=query, timeout=POLL_SECONDS + 10)
        return list(found)

    async def confirm(self, raw: Any) -> None:
        """Ask for what comes after this update from now on."""
        self._done = raw["number"]


class LoftSender(Sender):
    """Sends plain text."""

    def __init__(self, api: JsonApi) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message by one request."""
        body = {"room": address.room, "thread": address.thread, "text": reply.text}
        return SentMessage(platform_id=(await self._api.call("POST", "/messages", json=body))["id"])


connect = connecting(make_api)


@asynccontextmanager
async def open_bot(
    channel: str, settings: LoftSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    """Yield the bot's connection; Loft remembers which updates were acknowledged, so no state is kept."""
    async with connect(settings, guard) as api:
        read = partial(decode, channel=channel, bot=await identify(api))
        yield Connection(receiver=InboxReceiver(LoftFeed(api), read), sender=LoftSender(api))


plugin = ChannelPlugin(
    name="loft",
    title="Loft",
    features=frozenset({ChannelFeature.EDITS}),
    limits=ChannelLimits(text=4000),
    settings=LoftSettings,
    open=open_bot,
    probe=probe_with(connect, identify, operator="Create a new token."),
    account=lambda settings: token_digest(settings.token),
)
