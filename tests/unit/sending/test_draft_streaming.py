"""Drafts on platforms that stream, and drafts of turns that end early: nothing is left unfinished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from channels.errors import Ambiguous, RateLimited, Rejected
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.deliveries import destinations
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.route import bot_destination
from draft_harness import HIGH_LIMITS, ROOM, STREAMS, DraftHarness, open_draft_harness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DraftHarness]:
    """Open a stage with a conversation that has a chat."""
    async with open_draft_harness(tmp_path) as one:
        yield one


async def until(condition: Callable[[], bool]) -> None:
    """Let every task run until a condition holds that sends no notification."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a draft sends no notification
            await asyncio.sleep(0)


async def test_a_stream_grows_and_ends_with_the_final_text(harness: DraftHarness) -> None:
    """The next call gets the text that was shown, and the message's own id is recorded at the end."""
    harness.features = STREAMS
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1", "ada") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel"])
            received.show_text("msg_1", "Hello wor")
            await harness.channel.until(lambda: harness.visible_texts == ["Hello wor"])
            received.show_text("msg_1", None)
        outcome = await harness.deliver_final_text(drafts, "Hello, **world**")
    first, second = harness.channel.draft_updates
    assert (first.previous_text, first.platform_id, first.recipient_id) == ("", None, "ada")
    assert (second.previous_text, second.platform_id, second.key) == ("Hel", "showing 1", first.key)
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "1")
    assert harness.visible_texts == ["Hello, **world**"]


async def test_a_preview_is_followed_by_an_ordinary_message(harness: DraftHarness) -> None:
    """What the platform lets fade is no message: the final text is sent, exactly, and is the only one."""
    harness.features, harness.channel.previews = STREAMS, True
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.channel.preview == "Hel")
            received.show_text("msg_1", "Hello")
            await harness.channel.until(lambda: harness.channel.preview == "Hello")
            received.show_text("msg_1", None)
        outcome = await harness.deliver_final_text(drafts, "Hello world")
    assert (outcome.kind, harness.visible_texts, harness.channel.preview) == (
        OutcomeKind.DELIVERED,
        ["Hello world"],
        "",
    )
    assert harness.platform_calls == ["show", "show", "send"]


async def test_a_preview_is_shown_again_before_it_fades(harness: DraftHarness) -> None:
    """While there is no new text the same text is shown again."""
    harness.features, harness.channel.previews = STREAMS, True
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as received:
        assert received is not None
        received.show_text("msg_1", "Hel")
        await harness.channel.until(lambda: harness.platform_calls == ["show"])
        (draft,) = drafts._drafts.values()
        draft.due -= 60
        received.show_text("msg_1", "Hel")
        await harness.channel.until(lambda: harness.platform_calls == ["show", "show"])
    assert [showing.text for showing in harness.channel.draft_updates] == ["Hel", "Hel"]


async def test_a_repeated_turn_shows_what_its_first_attempt_had_shown(harness: DraftHarness) -> None:
    """After a crash the text may differ: the platform gets the shown text, and replaces it."""
    harness.features = STREAMS
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as received:
        assert received is not None
        received.show_text("msg_1", "Once upon a time")
        await harness.channel.until(lambda: harness.visible_texts == ["Once upon a time"])
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Long ago")
            await harness.channel.until(lambda: len(harness.channel.draft_updates) == 2)
            received.show_text("msg_1", None)
        await harness.deliver_final_text(drafts, "Long ago there was a dove.")
    again = harness.channel.draft_updates[1]
    assert (again.text, again.previous_text, again.platform_id) == (
        "Long ago",
        "Once upon a time",
        "showing 1",
    )
    assert harness.visible_texts == ["Long ago there was a dove."]


async def test_a_stream_never_takes_back_what_it_has_shown(harness: DraftHarness) -> None:
    """A text that outgrows one message stays as shown; its parts replace it at the end."""
    harness.features, harness.limits = STREAMS, replace(HIGH_LIMITS, text=20)
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as received:
        assert received is not None
        received.show_text("msg_1", "Twenty letters: here")
        await harness.channel.until(lambda: harness.visible_texts == ["Twenty letters: here"])
        received.show_text("msg_1", "Twenty letters: here and more")
        received.show_text("msg_2", "next")
        await harness.channel.until(lambda: len(harness.visible_texts) == 2)
    assert [showing.text for showing in harness.channel.draft_updates] == ["Twenty letters: here", "next"]


@pytest.mark.parametrize(("problem", "texts"), [(Ambiguous(), ["Hel"]), (RateLimited(0), ["Hello"])])
async def test_nothing_is_added_to_what_is_not_known(
    harness: DraftHarness, problem: Exception, texts: list[str]
) -> None:
    """After an uncertain call the stream is left alone; after a refusal it goes on."""
    harness.features = STREAMS
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel"])
            harness.channel.errors.append(problem)  # type: ignore[arg-type]
            received.show_text("msg_1", "Hello")
            await harness.channel.until(lambda: not harness.channel.errors)
            if texts == ["Hello"]:
                await harness.channel.until(lambda: harness.visible_texts == texts)
            received.show_text("msg_1", None)
        assert harness.visible_texts == texts
        await harness.deliver_final_text(drafts, "Hello world")
    assert harness.visible_texts == ["Hello world"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_draft_that_cannot_be_changed_is_removed(harness: DraftHarness, *, fails: bool) -> None:
    """The whole answer, or the reason of the end, is sent; the half above it is deleted."""
    harness.features = STREAMS | {ChannelFeature.DELETE}
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel"])
            if not fails:
                received.show_text("msg_1", None)
        harness.channel.errors.append(Rejected("streaming_state_conflict"))
        end = harness.deliver_turn_end(drafts, "Stopped") if fails else None
        outcome = await (end or harness.deliver_final_text(drafts, "Hello"))
    assert harness.visible_texts == ["Hel\n\nStopped" if fails else "Hello"]
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "2")
    assert harness.platform_calls[-3:] == ["edit", "send", "delete"]


async def test_a_draft_that_became_the_answer_is_not_removed(harness: DraftHarness) -> None:
    """An edit was carried out without an answer; it is found by the answer's key once another is refused."""
    harness.features = STREAMS | {ChannelFeature.DELETE, ChannelFeature.FIND}
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel"])
            received.show_text("msg_1", None)
        harness.channel.lost_answers = 1
        assert (await harness.deliver_final_text(drafts, "Hello")).uncertain
        async with harness.database.begin() as connection:
            await draft_store.end_write(connection, "msg_1", ROOM.encode())  # else waited for, for 3 s
        harness.channel.errors.append(Rejected("edit_window_closed"))
        outcome = await harness.deliver_final_text(drafts, "Hello", uncertain=True)
    assert (outcome.kind, harness.visible_texts) == (OutcomeKind.DELIVERED, ["Hello"])
    assert harness.platform_calls[-2:] == ["edit", "find"]


async def test_a_draft_that_cannot_be_removed_stays(harness: DraftHarness) -> None:
    """The answer is delivered all the same."""
    harness.features = STREAMS | {ChannelFeature.DELETE}
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.visible_texts == ["Hel"])
            received.show_text("msg_1", None)
        harness.channel.errors.append(Rejected("streaming_state_conflict"))
        harness.features = STREAMS
        outcome = await harness.deliver_final_text(drafts, "Hello")
    assert (outcome.kind, harness.visible_texts) == (OutcomeKind.DELIVERED, ["Hel", "Hello"])


@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_fails_leaves_nothing_unfinished(harness: DraftHarness, *, streams: bool) -> None:
    """The partial text stays without an ellipsis, with the reason after it, in one message."""
    harness.features = STREAMS if streams else harness.features
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Half a sen")
            await harness.channel.until(lambda: len(harness.visible_texts) == 1)
        outcome = await harness.deliver_turn_end(drafts, "This did not work: no more tokens")
        again = await harness.deliver_turn_end(drafts, "This did not work: no more tokens")
    assert outcome == again
    assert outcome.platform_id == "1"
    assert harness.visible_texts == ["Half a sen\n\nThis did not work: no more tokens"]


async def test_the_reason_below_a_text_that_ends_in_code_is_no_code(harness: DraftHarness) -> None:
    """A turn is stopped in the middle of a code block: the block is closed."""
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "So:\n```py\nx = 1")
            await harness.channel.until(lambda: len(harness.visible_texts) == 1)
        await harness.deliver_turn_end(drafts, "Stopped.")
    assert harness.visible_texts == ["So:\n```py\nx = 1\n```\n\nStopped."]


async def test_a_preview_of_a_turn_that_fails_is_said_with_the_reason(harness: DraftHarness) -> None:
    """A preview disappears; its text is not lost."""
    harness.features, harness.channel.previews = STREAMS, True
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Half a sen")
            await harness.channel.until(lambda: harness.channel.preview == "Half a sen")
        await harness.deliver_turn_end(drafts, "Stopped.")
    assert harness.visible_texts == ["Half a sen\n\nStopped."]


async def test_no_draft_begins_once_its_end_was_said(harness: DraftHarness) -> None:
    """A writer that was late, in any process, finds that the turn has ended."""
    async with (
        harness.drafts() as late,
        harness.drafts() as other,
        late.publish_while("cnv_1", "trn_1") as received,
    ):
        assert received is not None
        await harness.deliver_turn_end(other, "Stopped.")
        received.show_text("msg_1", "Half a sen")
        await until(lambda: any(draft.closed for draft in late._drafts.values()))
    assert harness.visible_texts == ["Stopped."]


async def test_the_words_of_an_end_wait_for_a_writer_elsewhere(harness: DraftHarness) -> None:
    """While another process may be in a call for the draft, the final text waits, then takes it over."""
    async with harness.drafts() as writer, harness.drafts() as other:
        async with writer.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Half")
            await harness.channel.until(lambda: harness.visible_texts == ["Half …"])
            waiting = await harness.deliver_turn_end(other, "Stopped.")
            assert (waiting.kind, waiting.pause_destination) == (OutcomeKind.RETRY, True)
        while (await harness.deliver_turn_end(other, "Stopped.")).kind is not OutcomeKind.DELIVERED:
            pass
    assert harness.visible_texts == ["Half\n\nStopped."]


async def test_what_does_not_fit_with_the_reason_is_cut_for_it(harness: DraftHarness) -> None:
    """A full draft makes room for the words of its end."""
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "word " * 40)
            await harness.channel.until(lambda: len(harness.visible_texts) == 1)
        await harness.deliver_turn_end(drafts, "Stopped.")
    (text,) = harness.visible_texts
    assert len(text) <= HIGH_LIMITS.text
    assert text.startswith("word word")
    assert text.endswith("word\n\nStopped.")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_draft_keeps_to_holds_and_makes_them_known(harness: DraftHarness, *, whole: bool) -> None:
    """A 429 for a draft pauses its chat, or its bot, for every process; other drafts respect it."""
    async with harness.drafts() as one, harness.drafts() as other:
        harness.channel.errors.append(RateLimited(60, scope="account" if whole else "room"))
        async with one.publish_while("cnv_1", "trn_1") as received:
            assert received is not None
            received.show_text("msg_1", "Hel")
            held = await _wait_for_pause(
                harness, bot_destination(ROOM.destination) if whole else ROOM.destination
            )
        async with other.publish_while("cnv_1", "trn_2") as received:
            assert received is not None
            received.show_text("msg_2", "Hel")
            await until(lambda: any(draft.due > monotonic() + 30 for draft in other._drafts.values()))
    assert harness.platform_calls == ["send"]
    assert held > datetime.now(UTC) + timedelta(seconds=30)


async def _wait_for_pause(harness: DraftHarness, destination: str) -> datetime:
    """Return the end of a destination's pause once it is recorded."""
    async with asyncio.timeout(60):
        while True:
            async with harness.database.read() as connection:
                held = (await destinations.get_state(connection, destination)).paused_until
            if held is not None:
                return held
            await asyncio.sleep(0.01)
