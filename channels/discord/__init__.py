"""Manifest of the Discord adapter; only settings are imported before a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.discord.settings import DiscordSettings
from channels.emoji import ReactionEmoji
from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.emoji import ALIASES
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: DiscordSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.discord.api import connect
    from channels.discord.receive.receiver import DiscordReceiver
    from channels.discord.send.deferred_replies import DeferredReplies
    from channels.discord.send.sender import DiscordSender

    async with connect(settings, guard) as api:
        bot = await api.identify()
        deferred = DeferredReplies(api, state)
        await deferred.load()
        yield Connection(
            receiver=DiscordReceiver(api, settings, state, channel=channel, bot=bot, deferred=deferred),
            sender=DiscordSender(api, deferred, bot=bot),
        )


plugin = ChannelPlugin(
    name="discord",
    title="Discord",
    features=frozenset(set(ChannelFeature) - {ChannelFeature.STREAM, ChannelFeature.STEPS}),
    limits=ChannelLimits(
        text=2000,
        upload_bytes=100 * 1024 * 1024,
        room_sends_per_second=1.0,
        account_sends_per_second=50.0,
        typing_seconds=10.0,
        recognised_seconds=120.0,
        public_place=lambda address: address.whole_room if "public_thread" in address.extras else None,
    ),
    settings=DiscordSettings,
    open=_open,
    probe=probe_of("channels.discord.probe"),
    account=lambda settings: settings.bot_id,
    emoji=ReactionEmoji(aliases=ALIASES, own_names=r"\w{2,32}:\d{15,21}"),
    simulate=simulator_of("channels.discord.simulator.run"),
)
