"""G2, G4 and G10 at a small size: limits, failing replicas, memory (full size: `bench.chats`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import chat_limits, chat_memory, chat_replicas
from bench.chat_replicas import LEASE, FailoverPlan
from channels.port import ChannelFeature
from channels.registry import plugin
from postgres import PostgresUnavailable

pytestmark = pytest.mark.timeout(300)
SLACK = 25.0
"""Seconds a machine that runs other tests as well may take beyond what is promised."""


async def test_g10_a_limit_is_overstepped_once_a_window_at_the_most(tmp_path: Path) -> None:
    """Many messages in several chats: none is lost or reordered, and no window of a chat gets two 429s."""
    found = await chat_limits.measure(tmp_path, chats=3, messages=30, calm=3)
    assert (found.lost, found.reordered) == (0, 0)
    assert found.refused_in_a_window <= 1
    assert found.refused <= found.chats
    assert found.waited >= 2


@pytest.mark.parametrize(
    ("platform", "disturbance"), [("telegram", "kill"), ("discord", "freeze"), ("slack", "kill")]
)
async def test_g4_another_replica_goes_on_where_one_stopped(
    platform: str, disturbance: str, tmp_path: Path
) -> None:
    """The one that receives is killed or frozen amid long replies: nothing is lost, doubled or reordered."""
    plan = FailoverPlan(platform=platform, disturbance=disturbance, chats=3, last=2500)  # type: ignore[arg-type]
    try:
        found = await chat_replicas.run(plan, tmp_path)
    except PostgresUnavailable as error:
        pytest.skip(f"two replicas need PostgreSQL: {error}")
    assert (found.lost, found.reordered) == (0, 0)
    assert found.doubled_in_one_chat <= 1, "what was in flight, once"
    if {ChannelFeature.FIND, ChannelFeature.IDEMPOTENT_SEND} & plugin(platform).features:
        assert found.doubled == 0
    assert found.silent_seconds < LEASE + 2 + SLACK


async def test_memory_does_not_grow_with_messages(tmp_path: Path) -> None:
    """After a warm-up, a hundred messages leave the gateway about as large as it was."""
    found = await chat_memory.measure(tmp_path, messages=100, warm=80)
    assert found.grown < 10
