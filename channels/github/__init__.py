"""Manifest of the GitHub adapter; the client is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.github.settings import GitHubSettings
from channels.github.threads import REACTIONS, measure
from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.emoji import ALIASES
from channels.message import ReactionEmoji
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: GitHubSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.github.api import connect
    from channels.github.receive.deliveries import WebhookDeliveries
    from channels.github.receive.receiver import GitHubReceiver
    from channels.github.send.sender import GitHubSender

    async with connect(settings, guard) as api:
        bot = await api.identify()
        deliveries = WebhookDeliveries(api, settings, state)
        await deliveries.start()
        receiver = GitHubReceiver(api, settings, deliveries, channel=channel, bot=bot)
        yield Connection(receiver=receiver, sender=GitHubSender(api, bot=bot))


plugin = ChannelPlugin(
    name="github",
    title="GitHub",
    features=frozenset(
        {ChannelFeature.EDIT, ChannelFeature.EDITS, ChannelFeature.REACT, ChannelFeature.FIND}
    ),
    limits=ChannelLimits(
        text=60_000, room_sends_per_second=0.5, account_sends_per_second=1.0, measure=measure
    ),
    settings=GitHubSettings,
    open=_open,
    probe=probe_of("channels.github.probe"),
    account=lambda settings: f"app-{settings.app_id}",
    polls=lambda settings: settings.mode == "polling",
    emoji=ReactionEmoji(names=REACTIONS, aliases=ALIASES),
    simulate=simulator_of("channels.github.simulator"),
)
