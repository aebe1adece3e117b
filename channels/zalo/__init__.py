"""Manifest of the Zalo adapter; the HTTP client is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.plain import utf16_length
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from channels.zalo.settings import TEXT_LIMIT, ZaloSettings
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: ZaloSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.inbox.receiver import InboxReceiver
    from channels.zalo.api import connect
    from channels.zalo.receive.codec import decode
    from channels.zalo.receive.receiver import feed_of, is_signed
    from channels.zalo.send.sender import ZaloSender

    async with connect(settings, state, guard) as api:
        bot = await api.identify()
        read = partial(decode, channel=channel, bot=bot)
        receiver = InboxReceiver(feed_of(api, settings), read, partial(is_signed, settings))
        account = f"oa-{bot.id}" if settings.platform == "oa" else ""  # several apps can be linked to one
        yield Connection(receiver=receiver, sender=ZaloSender(api), account=account)


plugin = ChannelPlugin(
    name="zalo",
    title="Zalo",
    features=frozenset({ChannelFeature.TYPING, ChannelFeature.DOWNLOAD}),
    limits=ChannelLimits(
        text=TEXT_LIMIT,
        room_sends_per_second=1.0,
        account_sends_per_second=10.0,
        typing_seconds=5.0,
        measure=utf16_length,
    ),
    settings=ZaloSettings,
    open=_open,
    probe=probe_of("channels.zalo.probe"),
    account=lambda settings: settings.account,
    simulate=simulator_of("channels.zalo.simulator"),
)
