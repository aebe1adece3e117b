"""Drafts on platforms that stream, and drafts of turns that end early: nothing is left unfinished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from channels.errors import Ambiguous, RateLimited
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
    """Let everybody run until something is so of which nobody tells."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a draft tells nobody of itself
            await asyncio.sleep(0)


async def test_a_stream_grows_and_ends_with_the_final_text(stage: DraftHarness) -> None:
    """What was shown is told to the next call, and the message's own id is recorded in the end."""
    stage.features = STREAMS
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1", "ada") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.visible_texts == ["Hel"])
            heard("msg_1", "Hello wor")
            await stage.channel.until(lambda: stage.visible_texts == ["Hello wor"])
            heard("msg_1", None)
        outcome = await stage.deliver_final_text(drafts, "Hello, **world**")
    first, second = stage.channel.draft_updates
    assert (first.previous_text, first.platform_id, first.recipient_id) == ("", None, "ada")
    assert (second.previous_text, second.platform_id, second.key) == ("Hel", "showing 1", first.key)
    assert (outcome.kind, outcome.platform_id) == (OutcomeKind.DELIVERED, "1")
    assert stage.visible_texts == ["Hello, **world**"]


async def test_a_preview_is_followed_by_an_ordinary_message(stage: DraftHarness) -> None:
    """What the platform lets fade is no message: the final text is sent, exactly, and is the only one."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.channel.preview == "Hel")
            heard("msg_1", "Hello")
            await stage.channel.until(lambda: stage.channel.preview == "Hello")
            heard("msg_1", None)
        outcome = await stage.deliver_final_text(drafts, "Hello world")
    assert (outcome.kind, stage.visible_texts, stage.channel.preview) == (
        OutcomeKind.DELIVERED,
        ["Hello world"],
        "",
    )
    assert stage.platform_calls == ["show", "show", "send"]


async def test_a_preview_is_shown_again_before_it_fades(stage: DraftHarness) -> None:
    """While nothing new is said the same text is shown again."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Hel")
        await stage.channel.until(lambda: stage.platform_calls == ["show"])
        (draft,) = drafts._drafts.values()
        draft.due -= 60
        heard("msg_1", "Hel")
        await stage.channel.until(lambda: stage.platform_calls == ["show", "show"])
    assert [showing.text for showing in stage.channel.draft_updates] == ["Hel", "Hel"]


async def test_a_repeated_turn_tells_what_its_first_attempt_had_shown(stage: DraftHarness) -> None:
    """After a crash the words may be others: the platform is told what stands there, and replaces it."""
    stage.features = STREAMS
    async with stage.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Once upon a time")
        await stage.channel.until(lambda: stage.visible_texts == ["Once upon a time"])
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Long ago")
            await stage.channel.until(lambda: len(stage.channel.draft_updates) == 2)
            heard("msg_1", None)
        await stage.deliver_final_text(drafts, "Long ago there was a dove.")
    again = stage.channel.draft_updates[1]
    assert (again.text, again.previous_text, again.platform_id) == (
        "Long ago",
        "Once upon a time",
        "showing 1",
    )
    assert stage.visible_texts == ["Long ago there was a dove."]


async def test_a_stream_never_takes_back_what_it_has_shown(stage: DraftHarness) -> None:
    """A text that outgrows one message stays as it is shown; its parts take its place in the end."""
    stage.features, stage.limits = STREAMS, replace(HIGH_LIMITS, text=20)
    async with stage.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Twenty letters: here")
        await stage.channel.until(lambda: stage.visible_texts == ["Twenty letters: here"])
        heard("msg_1", "Twenty letters: here and more")
        heard("msg_2", "next")
        await stage.channel.until(lambda: len(stage.visible_texts) == 2)
    assert [showing.text for showing in stage.channel.draft_updates] == ["Twenty letters: here", "next"]


@pytest.mark.parametrize(("trouble", "texts"), [(Ambiguous(), ["Hel"]), (RateLimited(0), ["Hello"])])
async def test_nothing_is_added_to_what_is_not_known(
    stage: DraftHarness, trouble: Exception, texts: list[str]
) -> None:
    """After a call that may have been carried out the stream is left alone; after a refusal it goes on."""
    stage.features = STREAMS
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.visible_texts == ["Hel"])
            stage.channel.errors.append(trouble)  # type: ignore[arg-type]
            heard("msg_1", "Hello")
            await stage.channel.until(lambda: not stage.channel.errors)
            if texts == ["Hello"]:
                await stage.channel.until(lambda: stage.visible_texts == texts)
            heard("msg_1", None)
        assert stage.visible_texts == texts
        await stage.deliver_final_text(drafts, "Hello world")
    assert stage.visible_texts == ["Hello world"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_fails_leaves_nothing_unfinished(stage: DraftHarness, *, streams: bool) -> None:
    """What it had said stands without a sign that more comes, with the reason after it, in one message."""
    stage.features = STREAMS if streams else stage.features
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half a sen")
            await stage.channel.until(lambda: len(stage.visible_texts) == 1)
        outcome = await stage.deliver_turn_end(drafts, "This did not work: no more tokens")
        again = await stage.deliver_turn_end(drafts, "This did not work: no more tokens")
    assert outcome == again
    assert outcome.platform_id == "1"
    assert stage.visible_texts == ["Half a sen\n\nThis did not work: no more tokens"]


async def test_a_preview_of_a_turn_that_fails_is_said_with_the_reason(stage: DraftHarness) -> None:
    """A preview fades; what it said is not lost."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half a sen")
            await stage.channel.until(lambda: stage.channel.preview == "Half a sen")
        await stage.deliver_turn_end(drafts, "Stopped.")
    assert stage.visible_texts == ["Half a sen\n\nStopped."]


async def test_no_draft_begins_once_its_end_was_said(stage: DraftHarness) -> None:
    """A writer that was late, in any process, finds that the turn has ended."""
    async with stage.drafts() as late, stage.drafts() as other, late.publish_while("cnv_1", "trn_1") as heard:
        assert heard is not None
        await stage.deliver_turn_end(other, "Stopped.")
        heard("msg_1", "Half a sen")
        await until(lambda: any(draft.closed for draft in late._drafts.values()))
    assert stage.visible_texts == ["Stopped."]


async def test_the_words_of_an_end_wait_for_a_writer_elsewhere(stage: DraftHarness) -> None:
    """While another process may be amid a call for the draft, its end waits, and then takes it over."""
    async with stage.drafts() as writer, stage.drafts() as other:
        async with writer.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half")
            await stage.channel.until(lambda: stage.visible_texts == ["Half …"])
            waiting = await stage.deliver_turn_end(other, "Stopped.")
            assert (waiting.kind, waiting.pause_destination) == (OutcomeKind.RETRY, True)
        while (await stage.deliver_turn_end(other, "Stopped.")).kind is not OutcomeKind.DELIVERED:
            pass
    assert stage.visible_texts == ["Half\n\nStopped."]


async def test_what_does_not_fit_with_the_reason_is_cut_for_it(stage: DraftHarness) -> None:
    """A full draft makes room for the words of its end."""
    async with stage.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "word " * 40)
            await stage.channel.until(lambda: len(stage.visible_texts) == 1)
        await stage.deliver_turn_end(drafts, "Stopped.")
    (text,) = stage.visible_texts
    assert len(text) <= HIGH_LIMITS.text
    assert text.startswith("word word")
    assert text.endswith("word\n\nStopped.")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_draft_keeps_to_holds_and_makes_them_known(stage: DraftHarness, *, whole: bool) -> None:
    """A 429 for a draft holds its chat, or its bot, for every process; a draft elsewhere keeps to it."""
    async with stage.drafts() as one, stage.drafts() as other:
        stage.channel.errors.append(RateLimited(60, scope="account" if whole else "room"))
        async with one.publish_while("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: not stage.channel.errors)
        async with other.publish_while("cnv_1", "trn_2") as heard:
            assert heard is not None
            heard("msg_2", "Hel")
            await until(lambda: any(draft.due > monotonic() + 30 for draft in other._drafts.values()))
    assert stage.platform_calls == ["send"]
    place = bot_destination(ROOM.destination) if whole else ROOM.destination
    async with stage.database.read() as connection:
        held = (await destinations.get_state(connection, place)).paused_until
    assert held is not None
    assert held > datetime.now(UTC) + timedelta(seconds=30)
