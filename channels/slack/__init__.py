"""Manifest of the Slack adapter; the SDK is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.emoji import ReactionEmoji
from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.emoji import ALIASES, SHORT_NAMES
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from channels.slack.settings import SlackSettings
from channels.slack.text import measure
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: SlackSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.slack.api import connect
    from channels.slack.connections import connect_installed, connect_workspace

    async with connect(settings, guard) as api:
        yield await (connect_workspace if settings.bot_token else connect_installed)(channel, api, state)


plugin = ChannelPlugin(
    name="slack",
    title="Slack",
    features=frozenset(set(ChannelFeature) - {ChannelFeature.IDEMPOTENT_SEND}),
    limits=ChannelLimits(
        text=4000,
        upload_bytes=50_000_000,
        account_sends_per_second=5.0,
        typing_seconds=60.0,
        measure=measure,
        public_place=lambda address: address.whole_room,
    ),
    settings=SlackSettings,
    open=_open,
    probe=probe_of("channels.slack.probe"),
    account=lambda settings: settings.account,
    connection_key=lambda settings: settings.connection_key,
    is_installable=lambda settings: settings.bot_token is None,
    emoji=ReactionEmoji(
        names={emoji: names[0] for emoji, names in SHORT_NAMES.items()},
        aliases=ALIASES,
        own_names=r"[a-z0-9_+'-]{1,80}",
    ),
    simulate=simulator_of("channels.slack.simulator.run"),
)
