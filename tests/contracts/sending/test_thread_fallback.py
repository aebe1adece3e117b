"""The chat sink sends to the room what a deleted or locked thread no longer accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from channels.discord import plugin as discord
from channels.errors import RateLimited, ThreadUndeliverable
from channels.github import plugin as github
from channels.message import Address, Reply, SentMessage
from channels.port import ChannelFeature
from channels.slack import plugin as slack
from channels.telegram import plugin as telegram
from delivery.chat.sink import ChatSink
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import OutcomeKind
from memory_channel import MemoryChannel
from sink_harnesses import HIGH_LIMITS, ROOM, make_bot, make_delivery

THREAD = replace(ROOM, thread="7").encode()
DISCORD_THREAD = Address(channel="c", room="1", thread="2", extras={"public_thread": "1"})
PULL_REQUEST = Address(channel="c", room="o/r", thread="12")
DISCUSSION = Address(channel="c", room="o/r", thread="discussions/7", extras={"discussion": "D_1"})
REPLY = {"discussion": "D_1", "reply_to": "DC_8"}
LINE = "For the thread `Count the 'pigeons'`, which accepts no more messages:"


async def _title(_conversation: str) -> str:
    return "Count the `pigeons`"


def make_sink(
    channel: MemoryChannel, *features: ChannelFeature, limit: int = 4096, public: bool = True
) -> ChatSink:
    """Return a chat sink whose threads everyone in the room can read."""
    limits = replace(HIGH_LIMITS, text=limit, public_place=lambda one: one.whole_room if public else None)
    return ChatSink({"chn_1": make_bot(channel, frozenset(features), limits)}.get, name_thread=_title)


@dataclass(slots=True)
class LimitedChannel(MemoryChannel):
    """Its threads are gone; while it `is_limited`, it accepts no second message."""

    is_limited: bool = True

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Refuse a thread, and a second message."""
        if address.thread is not None:
            raise ThreadUndeliverable("deleted")
        if self.is_limited and self.rooms[address.room]:
            raise RateLimited(0)
        return await MemoryChannel.send(self, address, reply)


async def test_the_room_gets_what_its_dead_thread_refuses() -> None:
    """The answer comes once, below a line that names the thread; it replies to nothing."""
    channel = MemoryChannel()
    channel.errors.append(ThreadUndeliverable("message thread not found"))
    body = encode_part(Part(text="42", reply_to="3"))
    outcome = await make_sink(channel).send(make_delivery(target=THREAD, body=body))
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "1")
    assert [(one.text, one.reply_to) for one in channel.rooms["42"].values()] == [(f"{LINE}\n\n42", None)]


async def test_the_line_is_above_the_first_part_of_an_answer() -> None:
    """Later parts and messages of the turn follow without it; the next turn has its own."""
    channel = MemoryChannel()
    sink = make_sink(channel)
    for number, (turn, event, part) in enumerate(
        [("trn_1", "evt_1", 0), ("trn_1", "evt_1", 1), ("trn_1", "evt_2", 0), ("trn_2", "evt_3", 0)]
    ):
        channel.errors.append(ThreadUndeliverable("deleted"))
        delivery = make_delivery(
            id=f"dlv_{number}",
            target=THREAD,
            turn=turn,
            event_id=event,
            part=part,
            body=encode_part(Part(text=f"{number}")),
        )
        assert (await sink.send(delivery)).kind is OutcomeKind.DELIVERED
    assert channel.texts("42") == [f"{LINE}\n\n0", "1", "2", f"{LINE}\n\n3"]


async def test_a_part_that_leaves_no_space_follows_the_line() -> None:
    """The line is a message of its own; a retry of the part does not repeat it."""
    channel = LimitedChannel()
    sink = make_sink(channel, limit=100)
    delivery = make_delivery(target=THREAD, body=encode_part(Part(text="x" * 90)))
    assert (await sink.send(delivery)).kind is OutcomeKind.RETRY
    channel.is_limited = False
    assert (await sink.send(replace(delivery, attempt=2))).kind is OutcomeKind.DELIVERED
    assert channel.texts("42") == [LINE, "x" * 90]


async def test_an_edit_follows_a_message_that_was_sent_to_the_room() -> None:
    """A decision replaces its question there too."""
    channel = MemoryChannel()
    sink = make_sink(channel, ChannelFeature.EDIT)
    channel.errors.append(ThreadUndeliverable("deleted"))
    asked = await sink.send(make_delivery(target=THREAD, body=encode_part(Part(text="May I?"))))
    channel.errors.append(ThreadUndeliverable("deleted"))
    body = encode_part(Part(text="Approved", only_edit=True))
    await sink.send(make_delivery(id="dlv_2", target=THREAD, platform_id=asked.platform_id, body=body))
    assert channel.texts("42") == ["Approved"]


async def test_what_may_have_arrived_in_a_dead_thread_is_looked_up_in_the_room() -> None:
    """An attempt after a crash finds the message that an earlier one has sent to the room."""
    channel = MemoryChannel()
    sink = make_sink(channel, ChannelFeature.FIND)
    delivery = make_delivery(target=THREAD)
    for attempt in (1, 2):
        channel.errors.append(ThreadUndeliverable("deleted"))
        again = replace(delivery, attempt=attempt, uncertain=attempt > 1)
        assert (await sink.send(again)).kind is OutcomeKind.DELIVERED
    assert channel.texts("42") == [f"{LINE}\n\nhello"]


async def test_a_place_without_messages_is_named_beside_the_thread() -> None:
    """The result for a deleted post of a forum of Discord is given up, and the reason names both."""
    channel = MemoryChannel()
    channel.errors += [ThreadUndeliverable("unknown channel"), ThreadUndeliverable("a forum")]
    outcome = await make_sink(channel).send(make_delivery(target=THREAD))
    assert (outcome.kind, channel.texts("42")) == (OutcomeKind.GIVE_UP, [])
    assert outcome.detail == "unknown channel; nor does the place of the thread take messages: a forum"


async def test_a_private_thread_s_messages_stay_out_of_its_room() -> None:
    """Others would read them there."""
    channel = MemoryChannel()
    channel.errors.append(ThreadUndeliverable("deleted"))
    outcome = await make_sink(channel, public=False).send(make_delivery(target=THREAD))
    assert (outcome.kind, channel.texts("42")) == (OutcomeKind.GIVE_UP, [])


@pytest.mark.parametrize(
    ("platform", "address", "place"),
    [
        (telegram, Address(channel="c", room="-1001", thread="7"), Address(channel="c", room="-1001")),
        (telegram, Address(channel="c", room="-1001", thread="direct-7"), None),
        (slack, Address(channel="c", room="C1", thread="1.2"), Address(channel="c", room="C1")),
        (discord, DISCORD_THREAD, DISCORD_THREAD.whole_room),
        (discord, Address(channel="c", room="1", thread="2"), None),
        (github, Address(channel="c", room="o/r", thread="12/review/3"), PULL_REQUEST),
        (github, PULL_REQUEST, None),
        (github, replace(DISCUSSION, thread="discussions/7/8", extras=REPLY), DISCUSSION),
        (github, DISCUSSION, None),
    ],
)
def test_platforms_name_the_threads_that_everyone_in_the_room_can_read(
    platform: object, address: Address, place: Address | None
) -> None:
    """Discord has private threads; a channel's direct messages at Telegram have one person each.

    GitHub has threads within pull requests and discussions, and no messages of a whole repository.
    """
    assert platform.limits.public_place(address) == place  # type: ignore[attr-defined]
