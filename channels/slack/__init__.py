"""Manifest of the Slack adapter; the SDK is imported when a channel is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from channels.port import ChannelFeature, ChannelLimits, ChannelPlugin, ChannelState, CheckResult, Connection
from channels.slack.settings import SlackSettings
from channels.slack.text import measure
from egress.guard import EgressGuard

if TYPE_CHECKING:
    from channels.slack.simulator import Simulator


@asynccontextmanager
async def _open(
    channel: str, settings: SlackSettings, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    from channels.slack.api import connect
    from channels.slack.connections import connect_installed, connect_workspace

    async with connect(settings, guard) as api:
        yield await (connect_workspace if settings.bot_token else connect_installed)(channel, api, state)


async def _probe(settings: SlackSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    from channels.slack.probe import probe

    return await probe(settings, guard)


@asynccontextmanager
async def _simulate() -> AsyncIterator[tuple[Simulator, dict[str, Any]]]:
    from channels.slack.simulator.run import simulate

    async with simulate() as simulator:
        yield simulator, simulator.settings()


plugin = ChannelPlugin(
    name="slack",
    title="Slack",
    features=frozenset(set(ChannelFeature) - {ChannelFeature.IDEMPOTENT_SEND}),
    limits=ChannelLimits(
        text=4000,
        upload_bytes=50_000_000,
        room_sends_per_second=1.0,
        account_sends_per_second=5.0,
        typing_seconds=60.0,
        measure=measure,
    ),
    settings=SlackSettings,
    open=_open,
    probe=_probe,
    account=lambda settings: settings.account,
    polls=lambda settings: settings.mode == "socket",
    connection_key=lambda settings: settings.connection_key,
    simulate=_simulate,
)
