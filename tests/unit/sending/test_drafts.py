"""Drafts: replies that grow in a chat while they are generated, and never outlive their final text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.errors import RateLimited, Rejected, Unreachable
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftRow, DraftWrite
from delivery.chat.draft_writer import WRITE_SECONDS, first_part, with_ellipsis
from delivery.chat.drafts import is_being_written
from delivery.chat.sink import ChatSink
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import OutcomeKind
from draft_harness import EDITS, HIGH_LIMITS, DraftHarness, open_draft_harness
from sink_harnesses import make_bot, make_delivery


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DraftHarness]:
    """Open a database with one conversation that has a chat."""
    async with open_draft_harness(tmp_path) as one:
        yield one


async def run_ready_tasks() -> None:
    """Let every ready task run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_reply_grows_and_becomes_the_final_text(harness: DraftHarness) -> None:
    """A growing reply is sent once and then edited, and the final text replaces it in the same message."""
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel …"])
            received.show_text("msg_1", "Hello wor")
            await harness.channel.until(lambda: harness.visible_texts == ["Hello wor …"])
            received.show_text("msg_1", None)
        outcome = await harness.deliver_final_text(drafts, "Hello world")
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "1")
    assert harness.visible_texts == ["Hello world"]
    assert harness.platform_calls.count("send") == 1


async def test_a_quick_reply_has_no_draft(harness: DraftHarness) -> None:
    """A message that is complete before its time is sent once, as a whole."""
    async with harness.drafts(after=60) as drafts:
        async with drafts.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            received.show_text("msg_1", None)
        await harness.deliver_final_text(drafts, "Hello")
    assert harness.platform_calls == ["send"]
    assert harness.visible_texts == ["Hello"]


async def test_the_turn_is_never_held_up_and_the_final_text_comes_last(harness: DraftHarness) -> None:
    """The turn ends while the platform delays a draft's call; the final text waits for that call."""
    harness.channel.frozen = asyncio.Event()
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.called.wait()
            received.show_text("msg_1", None)
        delivering = asyncio.create_task(harness.deliver_final_text(drafts, "Hello"))
        await asyncio.wait({delivering}, timeout=0.05)
        assert harness.platform_calls == ["send"]
        harness.channel.frozen.set()
        assert (await delivering).kind is OutcomeKind.DELIVERED
    assert harness.visible_texts == ["Hello"]


async def test_nothing_is_edited_after_the_final_text(harness: DraftHarness) -> None:
    """A turn that goes on talking after its message was delivered changes nothing any more."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1") as received:
        assert received is not None
        received.show_text("msg_1", "Hel")
        await harness.channel.until(lambda: harness.visible_texts == ["Hel …"])
        await harness.deliver_final_text(drafts, "Hello")
        received.show_text("msg_1", "Hello and a late thought")
        received.show_text("msg_2", "Next")
        await harness.channel.until(lambda: len(harness.visible_texts) == 2)
    assert harness.visible_texts == ["Hello", "Next …"]


async def test_another_process_waits_for_the_writer_and_then_takes_over(harness: DraftHarness) -> None:
    """A delivery in another process waits while a call may be under way, then finds the draft."""
    async with harness.drafts() as writer, harness.drafts() as other:
        async with writer.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel …"])
            outcome = await harness.deliver_final_text(other, "Hello")
            assert (outcome.kind, outcome.pause_destination) == (OutcomeKind.RETRY, True)
            received.show_text("msg_1", None)
        while outcome.retry_after is not None:
            await asyncio.sleep(outcome.retry_after)
            outcome = await harness.deliver_final_text(other, "Hello")
        assert outcome.kind is OutcomeKind.DELIVERED
    assert harness.visible_texts == ["Hello"]


async def test_a_repeated_turn_goes_on_with_the_same_draft(harness: DraftHarness) -> None:
    """After a crash the repeated message edits what its first attempt left in the chat."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1") as received:
        assert received is not None
        received.show_text("msg_1", "Hel")
        await harness.channel.until(lambda: harness.visible_texts == ["Hel …"])
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hi the")
            await harness.channel.until(lambda: harness.visible_texts == ["Hi the …"])
            received.show_text("msg_1", None)
        await harness.deliver_final_text(drafts, "Hi there")
    assert harness.visible_texts == ["Hi there"]


@pytest.mark.parametrize("problem", [Unreachable(), Rejected()])
async def test_a_draft_that_fails_is_given_up(harness: DraftHarness, problem: Exception) -> None:
    """When the first call fails no other is made, and the final text is sent afresh."""
    harness.channel.errors.append(problem)  # type: ignore[arg-type]
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.called.wait()
            received.show_text("msg_1", "Hello")
            received.show_text("msg_1", None)
        while (await harness.deliver_final_text(drafts, "Hello world")).kind is not OutcomeKind.DELIVERED:
            pass
    assert harness.visible_texts == ["Hello world"]
    assert harness.platform_calls == ["send", "send"]


async def test_a_429_for_an_edit_closes_the_room_for_drafts(harness: DraftHarness) -> None:
    """After a platform's wait the draft stays as it is until the wait is over."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1") as received:
        assert received is not None
        received.show_text("msg_1", "Hel")
        await harness.channel.until(lambda: harness.visible_texts == ["Hel …"])
        harness.channel.errors.append(RateLimited(60))
        received.show_text("msg_1", "Hello")
        await harness.channel.until(lambda: not harness.channel.errors)
        for length in range(5, 50):
            received.show_text("msg_1", "Hello world, and so on and so forth for a long while"[:length])
        await run_ready_tasks()
    assert harness.platform_calls == ["send", "edit"]


async def test_only_the_latest_text_is_shown(harness: DraftHarness) -> None:
    """However fast a text grows, edits stay within the budget, and the last one shows the newest text."""
    harness.limits = replace(HIGH_LIMITS, room_sends_per_second=4)
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1") as received:
        assert received is not None
        text = ""
        for number in range(30):
            text += f"{number} "
            received.show_text("msg_1", text)
            await run_ready_tasks()
        await harness.channel.until(lambda: harness.visible_texts == [text.strip() + " …"])
    assert len(harness.platform_calls) < 15


async def test_a_typing_sign_comes_before_the_first_word(harness: DraftHarness) -> None:
    """While there is no text yet a typing indicator shows, where the platform has one."""
    harness.features = frozenset({ChannelFeature.EDIT, ChannelFeature.TYPING})
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1"):
        await harness.channel.until(lambda: harness.platform_calls == ["typing"])
    harness.features = EDITS
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1"):
        pass
    assert harness.platform_calls == ["typing"]


async def test_a_conversation_without_a_chat_has_no_drafts(harness: DraftHarness) -> None:
    """The growing text of a conversation without a route to a chat is shown nowhere."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_2") as received:
        assert received is not None
        received.show_text("msg_1", "Hello")
        await run_ready_tasks()
    assert not harness.platform_calls


async def test_old_drafts_are_deleted(harness: DraftHarness) -> None:
    """A draft older than any delivery that could claim it is dropped."""
    old = datetime.now(UTC) - timedelta(days=4)
    async with harness.database.begin() as connection:
        call = DraftWrite(
            account="acc_1", message="msg_0", target="here", turn="trn_0", text="", now=old, busy_until=old
        )
        await draft_store.begin_write(connection, call)
    async with harness.drafts():
        pass
    async with harness.database.read() as connection:
        assert await draft_store.get(connection, "msg_0", "here") is None


@pytest.mark.parametrize(
    ("ahead", "busy"), [(None, False), (-1, False), (1, True), (WRITE_SECONDS, True), (600, False)]
)
def test_a_writer_is_busy_for_the_length_of_a_call(ahead: float | None, *, busy: bool) -> None:
    """An expired call, or one dated ten minutes ahead by another clock, delays nothing."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    until = None if ahead is None else now + timedelta(seconds=ahead)
    assert is_being_written(DraftRow(platform_id=None, busy_until=until), now) == busy


def test_a_draft_shows_the_first_part_of_a_long_text() -> None:
    """A text over the limit shows as its first part, like the final text will."""
    assert with_ellipsis(first_part("word ", HIGH_LIMITS), HIGH_LIMITS) == "word …"
    long = first_part("word " * 100, HIGH_LIMITS)
    assert len(with_ellipsis(long, HIGH_LIMITS)) <= 100
    assert long.startswith("word word")


async def test_a_report_that_only_edits_is_never_a_message(harness: DraftHarness) -> None:
    """It changes the visible message, and is dropped where there is none or the person deleted it."""
    sink = ChatSink(lambda _channel: make_bot(harness.channel, EDITS))
    report = encode_part(Part(text="Attempt 2 succeeded.", only_edit=True))
    await sink.send(make_delivery(body=encode_part(Part(text="HTTP 500"))))
    for platform_id in ("1", None, "deleted"):
        outcome = await sink.send(make_delivery(body=report, platform_id=platform_id))
        assert outcome.kind is OutcomeKind.DELIVERED
    assert harness.platform_calls == ["send", "edit", "edit"]
    assert harness.visible_texts == ["Attempt 2 succeeded."]
