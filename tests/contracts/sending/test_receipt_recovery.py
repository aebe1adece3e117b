"""A message that arrived just before its worker died is recorded, not sent again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from channels.message import Address
from channels.port import ChannelFeature
from delivery.database.engine import Database
from delivery.deliveries import store
from delivery.workers.send_receipts import SendReceipts
from delivery_worker import ACCOUNT, DeliveryWorkerHarness
from memory_channel import MemoryChannel
from sink_harnesses import make_bot

ROOM = Address(channel="chn_1", room="42")


class ProcessKilled(BaseException):
    """The process is no more."""


def kill_at(at: str) -> Callable[[str], None]:
    """Return a checkpoint that ends everything at a point."""

    def check(point: str) -> None:
        if point == at:
            raise ProcessKilled

    return check


def make_worker(
    database: Database, channel: MemoryChannel, notes: Path, *, checkpoint: str = ""
) -> DeliveryWorkerHarness:
    """Return a worker for one bot whose platform recognises nothing, as a process on this directory."""
    bot = make_bot(channel, frozenset({ChannelFeature.EDIT}))
    return DeliveryWorkerHarness(
        database=database,
        bots={"chn_1": bot},
        receipts=SendReceipts(notes),
        checkpoint=kill_at(checkpoint),
    )


async def run_until_killed(database: Database, channel: MemoryChannel, notes: Path, *, at: str) -> str:
    """Send two messages and die with the first; returns the conversation."""
    line = make_worker(database, channel, notes, checkpoint=at)
    conversation = await line.create_deliveries(ROOM, ["one", "two"])
    with pytest.raises(BaseExceptionGroup):
        async with line.running():
            await line.wait_for_states(conversation, "delivered")
    assert [call for call, _ in channel.calls] == ["send"]
    return conversation


@pytest.mark.parametrize("point", ["delivery.noted", "delivery.settle.before_commit"])
async def test_what_was_noted_is_recorded_by_the_next(point: str, database: Database, tmp_path: Path) -> None:
    """Each message is sent once, with its platform id, and the next one follows."""
    channel = MemoryChannel()
    conversation = await run_until_killed(database, channel, tmp_path / "arrivals", at=point)
    line = make_worker(database, channel, tmp_path / "arrivals")
    async with line.running():
        await line.wake_worker(ROOM)
        found = await line.wait_for_states(conversation, "delivered")
    assert [call for call, _ in channel.calls] == ["send", "send"]
    assert all(one.platform_id for one in found)


async def test_what_was_not_noted_is_said_again(database: Database, tmp_path: Path) -> None:
    """On a platform without a lookup a message is sent twice rather than never."""
    channel = MemoryChannel()
    notes = tmp_path / "arrivals"
    conversation = await run_until_killed(database, channel, notes, at="delivery.after_send")
    line = make_worker(database, channel, notes)
    async with line.running():
        await line.wake_worker(ROOM)
        await line.wait_for_states(conversation, "delivered")
    assert [call for call, _ in channel.calls] == ["send", "send", "send"]


async def test_a_note_does_not_speak_for_what_is_to_be_sent_again(database: Database, tmp_path: Path) -> None:
    """What an operator wants sent again goes to the platform, though the file still has the first send."""
    channel, notes = MemoryChannel(), tmp_path / "arrivals"
    line = make_worker(database, channel, notes)
    conversation = await line.create_deliveries(ROOM, ["one"])
    async with line.running():
        (one,) = await line.wait_for_states(conversation, "delivered")
    async with database.begin() as connection:
        assert await store.requeue(connection, ACCOUNT, one.id) is not None
    later = make_worker(database, channel, notes)
    assert later.receipts is not None
    assert [note.delivery for note in later.receipts.pending] == [one.id]
    async with later.running():
        await later.wake_worker(ROOM)
        await later.wait_for_states(conversation, "delivered")
    assert [call for call, _ in channel.calls] == ["send", "edit"]
