"""Manifest of the GitHub adapter; the client is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from channels.emoji import ReactionEmoji
from channels.github.settings import GitHubSettings
from channels.github.threads import REACTIONS, measure, thread_above
from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.emoji import ALIASES
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: GitHubSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.github.api import connect
    from channels.github.receive.codec import decode, is_signed, read_post
    from channels.github.receive.deliveries import WebhookDeliveries
    from channels.github.receive.reviews import complete_review
    from channels.github.send.sender import GitHubSender
    from channels.inbox.receiver import InboxReceiver

    async with connect(settings, guard) as api:
        bot = await api.identify()
        complete = partial(complete_review, api=api, settings=settings, bot=bot)
        deliveries = WebhookDeliveries(api, settings, state, complete)
        await deliveries.start()
        read, verify = partial(decode, channel=channel, bot=bot), partial(is_signed, settings.posting_secret)
        receiver = InboxReceiver(deliveries, read, verify, read_post, complete)
        yield Connection(receiver=receiver, sender=GitHubSender(api, bot=bot))


plugin = ChannelPlugin(
    name="github",
    title="GitHub",
    features=frozenset(map(ChannelFeature, ("edit", "edits", "react", "find"))),
    limits=ChannelLimits(
        text=60_000,
        room_sends_per_second=0.5,
        account_sends_per_second=1.0,
        measure=measure,
        account_of=lambda room: room.partition("/")[0].lower(),
        public_place=thread_above,
    ),
    settings=GitHubSettings,
    open=_open,
    probe=probe_of("channels.github.probe"),
    account=lambda settings: f"app-{settings.app_id}",
    emoji=ReactionEmoji(names=REACTIONS, aliases=ALIASES),
    simulate=simulator_of("channels.github.simulator"),
)
