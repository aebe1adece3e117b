"""Telegram itself: needs a bot's token and a chat it may write to, and skips without them."""

from __future__ import annotations

import os

import pytest

from channels.message import Address, DraftText, File, Reply, StatusReaction
from channels.registry import plugin
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED

TOKEN = os.environ.get("LIVE_TELEGRAM_TOKEN", "")
CHAT = os.environ.get("LIVE_TELEGRAM_CHAT", "")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (TOKEN and CHAT), reason="needs LIVE_TELEGRAM_TOKEN and LIVE_TELEGRAM_CHAT"),
]


async def test_the_real_platform_takes_a_reply_and_its_edit() -> None:
    """A reply is sent to the real Telegram and edited; repeating the same edit is no error."""
    telegram = plugin("telegram")
    settings = telegram.settings.model_validate({"token": TOKEN})
    address = Address(channel="chn_live", room=CHAT)
    async with telegram.open("chn_live", settings, MemoryChannelState(), TRUSTED) as connection:
        sent = await connection.sender.send(address, Reply(text="**Dovecote** live test", key="live"))
        for _ in range(2):
            await connection.sender.edit(address, sent.platform_id, Reply(text="_edited_", key="live"))


async def test_the_real_platform_shows_previews_signs_and_files() -> None:
    """A draft grows and ends as one message; the message takes reactions, and a file is sent by its type."""
    telegram = plugin("telegram")
    settings = telegram.settings.model_validate({"token": TOKEN})
    address = Address(channel="chn_live", room=CHAT)
    async with telegram.open("chn_live", settings, MemoryChannelState(), TRUSTED) as connection:
        channel = connection.sender
        shown = await channel.update_draft(address, DraftText(key="live-shown", text="Let me"))
        final = Reply(text="Let me **see**", key="live-shown")
        place = shown.platform_id if shown else None
        sent = await (channel.edit(address, place, final) if place else channel.send(address, final))
        for reaction in (*StatusReaction, None):
            await channel.react(address, sent.platform_id, reaction)
        file = File(name="live.txt", media_type="text/plain", content=b"live", caption="**a file**")
        assert (await channel.upload(address, file, key="live-file")).platform_id


async def test_the_probe_finds_the_token_good() -> None:
    """`dovecote channels test` has nothing to complain of."""
    telegram = plugin("telegram")
    findings = await telegram.probe(telegram.settings.model_validate({"token": TOKEN}), TRUSTED)
    assert [finding for finding in findings if not finding.ok] == []
