"""Manifest of the Pancake adapter; the HTTP client is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.plain import utf16_length
from channels.pancake.settings import TEXT_LIMIT, PancakeSettings
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: PancakeSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.pancake.api import connect
    from channels.pancake.receive.messages import PageMessages
    from channels.pancake.receive.receiver import PancakeReceiver
    from channels.pancake.send.sender import PancakeSender

    async with connect(settings, guard) as api:
        await api.list_conversations()  # a wrong token ends here
        feed = PageMessages(api, settings, state)
        await feed.start()
        yield Connection(receiver=PancakeReceiver(feed, settings, channel=channel), sender=PancakeSender(api))


plugin = ChannelPlugin(
    name="pancake",
    title="Pancake",
    features=frozenset({ChannelFeature.UPLOAD, ChannelFeature.DOWNLOAD}),
    limits=ChannelLimits(
        text=TEXT_LIMIT,
        room_sends_per_second=1.0,
        account_sends_per_second=5.0,
        upload_bytes=25_000_000,
        measure=utf16_length,
    ),
    settings=PancakeSettings,
    open=_open,
    probe=probe_of("channels.pancake.probe"),
    account=lambda settings: settings.page_id,
    simulate=simulator_of("channels.pancake.simulator"),
)
