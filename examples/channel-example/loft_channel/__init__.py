"""The manifest of Loft, a platform with plain text, long polling and one HTTP call for each message."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import Field, SecretStr

from channels.errors import ChannelError
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, CheckResult, Connection
from channels.settings import ChannelSettings
from egress.guard import EgressGuard
from egress.urls import EndpointUrl


class LoftSettings(ChannelSettings):
    """The settings of a Loft bot."""

    url: EndpointUrl = Field(description="The address of the Loft server.")
    token: SecretStr = Field(description="The bot's token.")


@asynccontextmanager
async def _open(
    channel: str, settings: LoftSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    del state  # the server remembers which updates were acknowledged
    from loft_channel.adapter import LoftReceiver, LoftSender, open_api

    async with open_api(settings.url, settings.token.get_secret_value(), guard) as api:
        bot = (await api.call("GET", "/me"))["id"]
        yield Connection(receiver=LoftReceiver(api, channel, bot), sender=LoftSender(api))


async def _probe(settings: LoftSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    from loft_channel.adapter import open_api

    try:
        async with open_api(settings.url, settings.token.get_secret_value(), guard) as api:
            bot = (await api.call("GET", "/me"))["id"]
    except ChannelError as error:
        return (CheckResult(subject="token", ok=False, detail=str(error), remedy="Create a new token."),)
    return (CheckResult(subject="token", ok=True, detail=f"the bot is {bot}"),)


plugin = ChannelPlugin(
    name="loft",
    title="Loft",
    features=frozenset({ChannelFeature.EDITS}),
    limits=ChannelLimits(text=4000),
    settings=LoftSettings,
    open=_open,
    probe=_probe,
    account=lambda settings: hashlib.sha256(settings.token.get_secret_value().encode()).hexdigest()[:16],
    polls=lambda _settings: True,
)
