"""What every sink promises: one attempt, judged by class, with the same ids, safe to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from channels.errors import (
    Ambiguous,
    ConnectedElsewhere,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Button
from channels.port import ChannelFeature
from channels.telegram import plugin as telegram
from channels.telegram.simulator import simulate
from channels.testing.memory_state import MemoryChannelState
from delivery.chat.sink import ChatSink, idempotency_key
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Outcome, OutcomeKind, Sink
from egress.guard import TRUSTED
from memory_channel import MemoryChannel
from sink_harnesses import (
    ROOM,
    SINKS,
    SinkHarness,
    WebhookSinkHarness,
    make_bot,
    make_chat_sink,
    make_delivery,
    open_webhook_sink,
)
from webhook_receiver import reset_connection


@pytest.fixture(params=sorted(SINKS))
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[SinkHarness]:
    """Each sink in turn."""
    async with SINKS[request.param]() as one:
        yield one


async def test_a_far_end_that_takes_it_is_delivered(harness: SinkHarness) -> None:
    """An accepted attempt is delivered, and made once."""
    assert (await harness.sink.send(harness.delivery)).kind is OutcomeKind.DELIVERED
    assert len(harness.attempt_ids()) == 1


async def test_a_temporary_failure_is_retried(harness: SinkHarness) -> None:
    """A temporary failure means later; the sink itself tries once only."""
    await harness.fail("later")
    assert (await harness.sink.send(harness.delivery)).kind is OutcomeKind.RETRY
    assert len(harness.attempt_ids()) <= 1


async def test_a_far_end_that_is_gone_is_given_up(harness: SinkHarness) -> None:
    """A receiver that is gone for good ends the delivery and is recorded."""
    await harness.fail("gone")
    outcome = await harness.sink.send(harness.delivery)
    assert outcome.kind is OutcomeKind.GIVE_UP
    assert outcome.address_dead or outcome.disable_endpoint


async def test_a_wait_that_is_asked_for_holds_the_destination(harness: SinkHarness) -> None:
    """A far end that asks for seven seconds gets them, for everything that goes there."""
    await harness.fail("hold")
    outcome = await harness.sink.send(harness.delivery)
    assert (outcome.kind, outcome.retry_after, outcome.pause_destination) == (OutcomeKind.RETRY, 7, True)


async def test_silence_ends_in_time(harness: SinkHarness) -> None:
    """A far end that never answers costs a bounded time and is judged as unknown or to be repeated."""
    await harness.fail("hang")
    async with asyncio.timeout(20):
        outcome = await harness.sink.send(harness.delivery)
    assert outcome.kind in {OutcomeKind.RETRY, OutcomeKind.AMBIGUOUS}


async def test_every_attempt_has_the_same_identity(harness: SinkHarness) -> None:
    """The receiver can recognise a repeat."""
    for attempt in (1, 2, 3):
        await harness.sink.send(replace(harness.delivery, attempt=attempt))
    assert len(harness.attempt_ids()) == 3
    assert len(set(harness.attempt_ids())) == 1


async def test_an_attempt_can_be_cancelled(harness: SinkHarness) -> None:
    """Cancelling an attempt in flight ends it at once, and the sink goes on working."""
    await harness.fail("hang")
    task = asyncio.create_task(harness.sink.send(harness.delivery))
    await harness.wait_for_attempt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    harness.recover()
    assert (await harness.sink.send(harness.delivery)).kind is OutcomeKind.DELIVERED


async def test_an_unknown_target_is_an_outcome(harness: SinkHarness) -> None:
    """A target that does not exist (any more) is judged, not raised."""
    outsider = replace(ROOM, channel="chn_2").encode() if harness.delivery.kind == "chat" else "whk_2"
    outcome = await harness.sink.send(replace(harness.delivery, target=outsider))
    assert outcome.kind in {OutcomeKind.RETRY, OutcomeKind.GIVE_UP}
    assert not harness.attempt_ids()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RateLimited(3), Outcome(kind=OutcomeKind.RETRY, retry_after=3, pause_destination=True)),
        (Unreachable("x"), Outcome(kind=OutcomeKind.RETRY, unreached=True)),
        (Ambiguous("x"), Outcome(kind=OutcomeKind.AMBIGUOUS, uncertain=True)),
        (NotPermitted("Send Messages"), Outcome(kind=OutcomeKind.OPERATOR)),
        (Undeliverable("x"), Outcome(kind=OutcomeKind.GIVE_UP, address_dead=True)),
        (ThreadUndeliverable("x"), Outcome(kind=OutcomeKind.GIVE_UP, thread_dead=True)),
        (Rejected("x"), Outcome(kind=OutcomeKind.GIVE_UP, content_refused=True)),
        (Unauthorized("x"), Outcome(kind=OutcomeKind.OPERATOR, unauthorized=True)),
        (ConnectedElsewhere("x"), Outcome(kind=OutcomeKind.OPERATOR)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_a_platform_s_errors_are_judged_by_their_remedy(error: Exception, expected: Outcome) -> None:
    """Each error of the channel port becomes its outcome, with the reason in words."""
    channel = MemoryChannel()
    channel.errors.append(error)  # type: ignore[arg-type]
    outcome = await make_chat_sink(channel).send(make_delivery())
    assert replace(outcome, detail="") == expected
    assert outcome.detail


async def test_a_refused_text_is_replaced_by_the_reason() -> None:
    """The person who waits reads why there is no answer; the delivery still counts as refused."""
    channel = MemoryChannel()
    channel.errors.append(Rejected("send: blocked by\n  moderation."))
    outcome = await make_chat_sink(channel).send(make_delivery())
    assert outcome.kind is OutcomeKind.GIVE_UP
    assert channel.texts("42") == ["The platform refused my message (send: blocked by moderation)."]


async def test_what_shows_already_is_edited_however_often() -> None:
    """A delivery with a platform id repeats the edit, and the text is shown once."""
    channel = MemoryChannel()
    sink = make_chat_sink(channel)
    first = await sink.send(make_delivery())
    channel.lost_answers = 2
    again = make_delivery(platform_id=first.platform_id, body=encode_part(Part(text="final")))
    assert [(await sink.send(again)).kind for _ in range(3)] == [
        OutcomeKind.RETRY,
        OutcomeKind.RETRY,
        OutcomeKind.DELIVERED,
    ]
    assert channel.texts("42") == ["final"]


async def test_a_deleted_draft_is_said_afresh() -> None:
    """When what showed is gone, the text is sent as a new message in the same attempt."""
    channel = MemoryChannel()
    outcome = await make_chat_sink(channel).send(make_delivery(platform_id="99"))
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "1")
    assert channel.texts("42") == ["hello"]


async def test_an_edit_of_what_is_gone_leaves_the_room_alive() -> None:
    """GitHub answers 404 for a deleted comment as for a lost repository: the reply is a new message."""
    channel = MemoryChannel()
    channel.errors.append(Undeliverable("PATCH comment: Not Found (HTTP 404)"))
    outcome = await make_chat_sink(channel).send(make_delivery(platform_id="99"))
    assert (outcome.kind, outcome.platform_id, outcome.address_dead) == (OutcomeKind.DELIVERED, "1", False)
    assert channel.texts("42") == ["hello"]


@pytest.mark.parametrize("part", [Part(text="", reaction="eyes", reply_to="7"), Part(text="", deletes=True)])
async def test_a_change_of_what_is_gone_leaves_the_room_alive(part: Part) -> None:
    """GitHub answers 404 for the reactions of a deleted comment as for a lost repository."""
    channel = MemoryChannel()
    channel.errors.append(Undeliverable("GET reactions: Not Found (HTTP 404)"))
    body = encode_part(part)
    sink = make_chat_sink(channel, ChannelFeature.REACT, ChannelFeature.DELETE)
    outcome = await sink.send(make_delivery(platform_id="99", body=body))
    assert (outcome.kind, outcome.address_dead) == (OutcomeKind.GIVE_UP, False)
    assert not channel.errors


async def test_a_send_that_may_have_arrived_is_repeated_where_the_platform_recognises_it() -> None:
    """A lost answer is uncertain on an ordinary platform, and harmless where the key is recognised."""
    for features, outcome in (
        ((ChannelFeature.TYPING,), OutcomeKind.AMBIGUOUS),
        ((ChannelFeature.IDEMPOTENT_SEND,), OutcomeKind.RETRY),
    ):
        channel = MemoryChannel(lost_answers=1)
        assert (await make_chat_sink(channel, *features).send(make_delivery())).kind is outcome


async def test_a_platform_without_edits_is_sent_to() -> None:
    """Without the feature a platform id is no reason to edit."""
    channel = MemoryChannel()
    await make_chat_sink(channel, ChannelFeature.TYPING).send(make_delivery(platform_id="1"))
    assert [call for call, _ in channel.calls] == ["send"]


@pytest.mark.parametrize(("features", "count"), [((ChannelFeature.BUTTONS,), 1), ((ChannelFeature.EDIT,), 0)])
async def test_buttons_go_where_there_are_buttons(features: tuple[ChannelFeature, ...], count: int) -> None:
    """Buttons are left out on a platform that has none."""
    channel = MemoryChannel()
    part = Part(text="May I?", buttons=(Button(label="Yes", data="approve:apr_1"),), reply_to="7")
    await make_chat_sink(channel, *features).send(make_delivery(body=encode_part(part)))
    (_, reply) = channel.calls[0]
    assert len(reply.buttons) == count
    assert reply.reply_to == "7"


async def test_keys_of_one_millisecond_differ_from_their_first_letters() -> None:
    """Idempotency keys of similar ids differ within any prefix that a platform compares."""
    keys = {idempotency_key(f"dlv_01hq3v8x2k{number:04}") for number in range(1000)}
    assert len({key[:8] for key in keys}) == 1000
    assert all(len(key) == 25 and key.isascii() for key in keys)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"text":1,"buttons":[1]}', b"\xff"])
async def test_a_body_that_cannot_be_read_is_a_dead_letter(body: bytes) -> None:
    """Garbage in a row ends that delivery and touches nothing else."""
    channel = MemoryChannel()
    outcome = await make_chat_sink(channel).send(make_delivery(body=body))
    assert outcome.kind is OutcomeKind.GIVE_UP
    assert not channel.calls


async def test_a_held_room_does_not_hold_another() -> None:
    """After a room's 429 that room waits without a call, while the next room is spoken to at once."""
    channel = MemoryChannel()
    channel.errors.append(RateLimited(60))
    sink = make_chat_sink(channel)
    await sink.send(make_delivery())
    held = await sink.send(make_delivery())
    assert held.pause_destination
    assert held.retry_after is not None
    assert held.retry_after > 50
    other = await sink.send(make_delivery(target=replace(ROOM, room="43").encode()))
    assert other.kind is OutcomeKind.DELIVERED
    assert len(channel.calls) == 2


async def test_a_held_account_holds_every_room() -> None:
    """After a 429 for the whole bot no room of it is spoken to."""
    channel = MemoryChannel()
    channel.errors.append(RateLimited(60, scope="account"))
    sink = make_chat_sink(channel)
    await sink.send(make_delivery())
    assert (await sink.send(make_delivery(target=replace(ROOM, room="43").encode()))).pause_destination
    assert len(channel.calls) == 1


async def test_a_cut_connection_is_no_accident() -> None:
    """A receiver that resets the connection is treated as a temporary error."""
    async with open_webhook_sink() as harness:
        assert isinstance(harness, WebhookSinkHarness)
        harness.receiver.script.append(reset_connection)
        assert (await harness.sink.send(harness.delivery)).kind is OutcomeKind.RETRY


async def test_a_busy_bot_is_refused_once_a_room_and_loses_nothing() -> None:
    """Five chats, thirty texts each: one or two refusals a chat, then limits and order are kept."""
    limits = replace(telegram.limits, room_sends_per_second=20, room_sends_per_minute=0)
    async with simulate() as simulator:
        await simulator.limit(room_per_second=20)
        settings = telegram.settings.model_validate(simulator.settings())
        async with telegram.open("chn_1", settings, MemoryChannelState(), TRUSTED) as connection:
            bot = make_bot(connection.sender, telegram.features, limits)
            sink = ChatSink({"chn_1": bot}.get, rate_wait_seconds=30)
            chats = range(1, 6)
            for chat in chats:
                await simulator.say(chat, "go")
            async with asyncio.timeout(60):
                await asyncio.gather(*(_send_all(sink, chat) for chat in chats))
        for chat in chats:
            assert [post.text for post in simulator.messages(chat)] == [f"text {n}" for n in range(30)]
        assert simulator.rate_limits.refused <= 2 * len(chats)


async def _send_all(sink: Sink, chat: int) -> None:
    for number in range(30):
        delivery = make_delivery(
            id=f"dlv_{chat}_{number}",
            target=replace(ROOM, room=str(chat)).encode(),
            body=encode_part(Part(text=f"text {number}")),
        )
        outcome = OutcomeKind.RETRY
        while outcome is not OutcomeKind.DELIVERED:
            async with AsyncExitStack() as held:
                outcome = (await sink.send(replace(delivery, exit_stack=held))).kind
