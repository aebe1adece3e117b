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
from delivery.deliveries.port import Verdict
from delivery.deliveries.route import bot_of
from draft_harness import GENEROUS, ROOM, STREAMS, Stage, draft_stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Open a stage with a conversation that has a chat."""
    async with draft_stage(tmp_path) as one:
        yield one


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody run until something is so of which nobody tells."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a draft tells nobody of itself
            await asyncio.sleep(0)


async def test_a_stream_grows_and_ends_with_the_final_text(stage: Stage) -> None:
    """What was shown is told to the next call, and the message's own id is recorded in the end."""
    stage.features = STREAMS
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1", "ada") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.texts == ["Hel"])
            heard("msg_1", "Hello wor")
            await stage.channel.until(lambda: stage.texts == ["Hello wor"])
            heard("msg_1", None)
        outcome = await stage.deliver(drafts, "Hello, **world**")
    first, second = stage.channel.showings
    assert (first.shown, first.platform_id, first.asker) == ("", None, "ada")
    assert (second.shown, second.platform_id, second.key) == ("Hel", "showing 1", first.key)
    assert (outcome.verdict, outcome.platform_id) == (Verdict.DELIVERED, "1")
    assert stage.texts == ["Hello, **world**"]


async def test_a_preview_is_followed_by_an_ordinary_message(stage: Stage) -> None:
    """What the platform lets fade is no message: the final text is sent, exactly, and is the only one."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.channel.preview == "Hel")
            heard("msg_1", "Hello")
            await stage.channel.until(lambda: stage.channel.preview == "Hello")
            heard("msg_1", None)
        outcome = await stage.deliver(drafts, "Hello world")
    assert (outcome.verdict, stage.texts, stage.channel.preview) == (Verdict.DELIVERED, ["Hello world"], "")
    assert stage.calls == ["show", "show", "send"]


async def test_a_preview_is_shown_again_before_it_fades(stage: Stage) -> None:
    """While nothing new is said the same text is shown again."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts, drafts.show("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Hel")
        await stage.channel.until(lambda: stage.calls == ["show"])
        (draft,) = drafts._open.values()
        draft.due -= 60
        heard("msg_1", "Hel")
        await stage.channel.until(lambda: stage.calls == ["show", "show"])
    assert [showing.text for showing in stage.channel.showings] == ["Hel", "Hel"]


async def test_a_repeated_turn_tells_what_its_first_attempt_had_shown(stage: Stage) -> None:
    """After a crash the words may be others: the platform is told what stands there, and replaces it."""
    stage.features = STREAMS
    async with stage.drafts() as drafts, drafts.show("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Once upon a time")
        await stage.channel.until(lambda: stage.texts == ["Once upon a time"])
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Long ago")
            await stage.channel.until(lambda: len(stage.channel.showings) == 2)
            heard("msg_1", None)
        await stage.deliver(drafts, "Long ago there was a dove.")
    again = stage.channel.showings[1]
    assert (again.text, again.shown, again.platform_id) == ("Long ago", "Once upon a time", "showing 1")
    assert stage.texts == ["Long ago there was a dove."]


async def test_a_stream_never_takes_back_what_it_has_shown(stage: Stage) -> None:
    """A text that outgrows one message stays as it is shown; its parts take its place in the end."""
    stage.features, stage.limits = STREAMS, replace(GENEROUS, text=20)
    async with stage.drafts() as drafts, drafts.show("cnv_1", "trn_1") as heard:
        assert heard is not None
        heard("msg_1", "Twenty letters: here")
        await stage.channel.until(lambda: stage.texts == ["Twenty letters: here"])
        heard("msg_1", "Twenty letters: here and more")
        heard("msg_2", "next")
        await stage.channel.until(lambda: len(stage.texts) == 2)
    assert [showing.text for showing in stage.channel.showings] == ["Twenty letters: here", "next"]


@pytest.mark.parametrize(("trouble", "texts"), [(Ambiguous(), ["Hel"]), (RateLimited(0), ["Hello"])])
async def test_nothing_is_added_to_what_is_not_known(
    stage: Stage, trouble: Exception, texts: list[str]
) -> None:
    """After a call that may have been carried out the stream is left alone; after a refusal it goes on."""
    stage.features = STREAMS
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: stage.texts == ["Hel"])
            stage.channel.trouble.append(trouble)  # type: ignore[arg-type]
            heard("msg_1", "Hello")
            await stage.channel.until(lambda: not stage.channel.trouble)
            if texts == ["Hello"]:
                await stage.channel.until(lambda: stage.texts == texts)
            heard("msg_1", None)
        assert stage.texts == texts
        await stage.deliver(drafts, "Hello world")
    assert stage.texts == ["Hello world"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_fails_leaves_nothing_unfinished(stage: Stage, *, streams: bool) -> None:
    """What it had said stands without a sign that more comes, with the reason after it, in one message."""
    stage.features = STREAMS if streams else stage.features
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half a sen")
            await stage.channel.until(lambda: len(stage.texts) == 1)
        outcome = await stage.end(drafts, "This did not work: no more tokens")
        again = await stage.end(drafts, "This did not work: no more tokens")
    assert outcome == again
    assert outcome.platform_id == "1"
    assert stage.texts == ["Half a sen\n\nThis did not work: no more tokens"]


async def test_a_preview_of_a_turn_that_fails_is_said_with_the_reason(stage: Stage) -> None:
    """A preview fades; what it said is not lost."""
    stage.features, stage.channel.previews = STREAMS, True
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half a sen")
            await stage.channel.until(lambda: stage.channel.preview == "Half a sen")
        await stage.end(drafts, "Stopped.")
    assert stage.texts == ["Half a sen\n\nStopped."]


async def test_no_draft_begins_once_its_end_was_said(stage: Stage) -> None:
    """A writer that was late, in any process, finds that the turn has ended."""
    async with stage.drafts() as late, stage.drafts() as other, late.show("cnv_1", "trn_1") as heard:
        assert heard is not None
        await stage.end(other, "Stopped.")
        heard("msg_1", "Half a sen")
        await until(lambda: any(draft.closed for draft in late._open.values()))
    assert stage.texts == ["Stopped."]


async def test_the_words_of_an_end_wait_for_a_writer_elsewhere(stage: Stage) -> None:
    """While another process may be amid a call for the draft, its end waits, and then takes it over."""
    async with stage.drafts() as writer, stage.drafts() as other:
        async with writer.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Half")
            await stage.channel.until(lambda: stage.texts == ["Half …"])
            waiting = await stage.end(other, "Stopped.")
            assert (waiting.verdict, waiting.hold) == (Verdict.RETRY, True)
        while (await stage.end(other, "Stopped.")).verdict is not Verdict.DELIVERED:
            pass
    assert stage.texts == ["Half\n\nStopped."]


async def test_what_does_not_fit_with_the_reason_is_cut_for_it(stage: Stage) -> None:
    """A full draft makes room for the words of its end."""
    async with stage.drafts() as drafts:
        async with drafts.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "word " * 40)
            await stage.channel.until(lambda: len(stage.texts) == 1)
        await stage.end(drafts, "Stopped.")
    (text,) = stage.texts
    assert len(text) <= GENEROUS.text
    assert text.startswith("word word")
    assert text.endswith("word\n\nStopped.")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_draft_keeps_to_holds_and_makes_them_known(stage: Stage, *, whole: bool) -> None:
    """A 429 for a draft holds its chat, or its bot, for every process; a draft elsewhere keeps to it."""
    async with stage.drafts() as one, stage.drafts() as other:
        stage.channel.trouble.append(RateLimited(60, scope="account" if whole else "room"))
        async with one.show("cnv_1", "trn_1") as heard:
            assert heard is not None
            heard("msg_1", "Hel")
            await stage.channel.until(lambda: not stage.channel.trouble)
        async with other.show("cnv_1", "trn_2") as heard:
            assert heard is not None
            heard("msg_2", "Hel")
            await until(lambda: any(draft.due > monotonic() + 30 for draft in other._open.values()))
    assert stage.calls == ["send"]
    place = bot_of(ROOM.destination) if whole else ROOM.destination
    async with stage.database.read() as connection:
        held = (await destinations.weather(connection, place)).held_until
    assert held is not None
    assert held > datetime.now(UTC) + timedelta(seconds=30)
