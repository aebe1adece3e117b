"""Manifest of the Telegram adapter; the SDK is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.emoji import ReactionEmoji
from channels.inbox.adapter_modules import probe_of, simulator_of
from channels.inbox.emoji import ALIASES
from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, Connection
from channels.telegram.payloads import DIRECT_TOPIC
from channels.telegram.settings import TelegramSettings
from channels.telegram.text import REACTIONS, is_group, measure
from egress.guard import EgressGuard


@asynccontextmanager
async def _open(
    channel: str, settings: TelegramSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.telegram.api import connect
    from channels.telegram.receive.albums import AlbumBuffer
    from channels.telegram.receive.decoder import Decoder
    from channels.telegram.receive.receiver import TelegramReceiver
    from channels.telegram.send.sender import TelegramSender

    async with connect(settings, guard) as api:
        bot = await api.identify()
        decoder = Decoder(api, channel=channel, bot=bot, state=state)
        async with AlbumBuffer(state, decoder, seconds=settings.album_seconds) as albums:
            receiver = TelegramReceiver(api, settings, albums, decoder)
            yield Connection(receiver=receiver, sender=TelegramSender(api))


FEATURES = "edit delete edits typing upload download buttons react reactions stream confidential"

plugin = ChannelPlugin(
    name="telegram",
    title="Telegram",
    features=frozenset(map(ChannelFeature, FEATURES.split())),
    limits=ChannelLimits(
        text=4096,
        upload_bytes=50_000_000,
        room_sends_per_second=1.0,
        room_sends_per_minute=20,
        account_sends_per_second=30.0,
        typing_seconds=5.0,
        measure=measure,
        is_group=is_group,
        public_place=lambda address: (
            None if (address.thread or "").startswith(DIRECT_TOPIC) else address.whole_room
        ),
    ),
    settings=TelegramSettings,
    open=_open,
    probe=probe_of("channels.telegram.probe"),
    account=lambda settings: settings.bot_id,
    emoji=ReactionEmoji(names={emoji: emoji for emoji in REACTIONS}, aliases=ALIASES, is_single=True),
    simulate=simulator_of("channels.telegram.simulator"),
)
