"""The tool calls of a turn, shown in a message of their own while they run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from channels.errors import Ambiguous, Unreachable
from channels.message import StepState, ToolStep, ToolSteps
from channels.port import ChannelFeature
from delivery.chat.drafts import Drafts
from delivery.chat.step_messages import MAX_STEPS
from draft_harness import STATUS_LINE, STEPS, STREAMS, DraftHarness, open_draft_harness

BASH = ToolStep(id="1", title="bash: make")
READ = ToolStep(id="2", title="read: log")
DONE = ToolStep(id="1", title="bash: make", state=StepState.DONE)


WAIT = ToolStep(id="wait:1", title="starting the sandbox", is_wait=True)
WAITED = replace(WAIT, state=StepState.DONE)
SAVING = ToolStep(id="wait:2", title="saving the files", is_wait=True)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DraftHarness]:
    """Open a database with one conversation that has a chat."""
    async with open_draft_harness(tmp_path) as one:
        one.features = STEPS
        yield one


async def show(drafts: Drafts, *steps: ToolStep) -> None:
    """Run an attempt at a turn with these steps to its end."""
    async with drafts.publish_while("cnv_1", "trn_1", "U1") as display:
        assert display is not None
        for step in steps:
            display.show_step(step)


def _has_ended(harness: DraftHarness, times: int) -> bool:
    return [one.has_ended for one in harness.channel.step_updates].count(True) == times


def _has_begun_after(harness: DraftHarness, times: int) -> bool:
    """Return whether a call has followed those that ended the message."""
    ends = [one.has_ended for one in harness.channel.step_updates]
    return ends.count(True) == times and ends[-1:] == [False]


async def test_steps_are_shown_while_they_run(harness: DraftHarness) -> None:
    """One message holds all steps of the turn with their states; the last call ends it."""
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1", "U1") as display:
            assert display is not None
            display.show_step(BASH)
            await harness.channel.until(lambda: harness.visible_texts == ["bash: make running"])
            display.show_step(DONE)
            display.show_step(READ)
            await harness.channel.until(
                lambda: harness.visible_texts == ["bash: make done\nread: log running"]
            )
        await harness.channel.until(lambda: harness.channel.step_updates[-1].has_ended)
    first, last = harness.channel.step_updates[0], harness.channel.step_updates[-1]
    assert (first.platform_id, last.platform_id, first.recipient_id) == (None, "steps 1", "U1")
    assert [one.has_ended for one in harness.channel.step_updates].count(True) == 1


async def test_the_next_attempt_continues_the_message(harness: DraftHarness) -> None:
    """After a crash the same message goes on; the final text is a message of its own."""
    for ends in (1, 2):
        async with harness.drafts() as drafts:
            async with drafts.publish_while("cnv_1", "trn_1") as display:
                assert display is not None
                display.show_step(BASH)
                await harness.channel.until(partial(_has_begun_after, harness, ends - 1))
            await harness.channel.until(partial(_has_ended, harness, ends))
    async with harness.drafts() as drafts:
        await harness.deliver_final_text(drafts, "made")
    assert harness.visible_texts == ["bash: make running", "made"]


async def leave_running(harness: DraftHarness) -> None:
    """Show a step, and let the process be killed before the end of its turn is shown."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        display.show_step(BASH)
        await harness.channel.until(lambda: bool(harness.visible_texts))
        harness.channel.errors += [Ambiguous("killed")]


@pytest.mark.parametrize("features", [STEPS, STATUS_LINE])
async def test_the_message_of_a_killed_process_is_ended_once_its_turn_has_ended(
    harness: DraftHarness, features: frozenset[ChannelFeature]
) -> None:
    """The next process ends it, the one after finds nothing to do; a turn that goes on keeps its message."""
    harness.features, harness.verbosity = features, True
    await leave_running(harness)
    calls = len(harness.platform_calls)
    async with harness.drafts():
        await harness.abandoned_checked.wait()
    assert len(harness.platform_calls) == calls
    async with harness.drafts(ended_turns=["trn_1"]):
        await harness.channel.until(lambda: len(harness.platform_calls) > calls)
    calls = len(harness.platform_calls)
    if features is STEPS:
        last = harness.channel.step_updates[-1]
        assert (last.platform_id, last.has_ended) == ("steps 1", True)
    else:
        assert harness.visible_texts == []
    async with harness.drafts(ended_turns=["trn_1"]):
        await harness.abandoned_checked.wait()
    assert len(harness.platform_calls) == calls


async def test_a_lost_first_answer_ends_the_steps(harness: DraftHarness) -> None:
    """Nothing is shown twice: not by this attempt, and not by the next."""
    harness.channel.errors.append(Ambiguous("lost"))
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        display.show_step(BASH)
        await harness.channel.called.wait()
    async with (
        harness.drafts() as drafts,
        drafts.publish_while("cnv_1", "trn_1") as display,
        drafts.publish_while("cnv_1", "trn_2") as other,
    ):
        assert display is not None
        assert other is not None
        display.show_step(DONE)
        other.show_step(READ)
        await harness.channel.until(lambda: harness.visible_texts == ["read: log running"])
    assert {reply.text for call, reply in harness.channel.calls if call == "steps"} == {
        "bash: make running",
        "read: log running",
    }


async def test_quick_steps_and_other_platforms_show_nothing(harness: DraftHarness) -> None:
    """A turn whose calls end before the delay has no such message, nor has one without the feature."""
    async with harness.drafts(after=60) as drafts:
        await show(drafts, BASH, DONE)
    harness.features = STREAMS
    async with harness.drafts() as drafts:
        await show(drafts, BASH, DONE)
    assert "steps" not in harness.platform_calls


async def test_a_place_without_steps_is_asked_once(harness: DraftHarness) -> None:
    """Where the platform shows none, the text of the reply is all that appears."""
    harness.channel.previews = True
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        display.show_step(BASH)
        await harness.channel.until(lambda: bool(harness.channel.step_updates))
        display.show_step(READ)
    assert (len(harness.channel.step_updates), harness.visible_texts) == (1, [])


async def test_the_steps_of_a_message_are_bounded(harness: DraftHarness) -> None:
    """A turn with many calls shows the first ones, in their latest state."""
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        for number in range(MAX_STEPS + 9):
            display.show_step(ToolStep(id=str(number), title="x"))
        display.show_step(ToolStep(id="0", title="x", state=StepState.DONE))
        await harness.channel.until(lambda: bool(harness.channel.step_updates))
    shown = harness.channel.step_updates[0].steps
    assert (len(shown), shown[0].state) == (MAX_STEPS, StepState.DONE)


async def test_a_status_line_is_edited_and_removed(harness: DraftHarness) -> None:
    """Where the bot can edit and delete, one message shows the tools of a turn until the attempt ends."""
    harness.features, harness.verbosity = STATUS_LINE, True
    async with harness.drafts() as drafts:
        for _attempt in range(2):
            async with drafts.publish_while("cnv_1", "trn_1") as display:
                assert display is not None
                display.show_step(BASH)
                await harness.channel.until(lambda: harness.visible_texts == ["… `bash: make`"])
                display.show_step(DONE)
                display.show_step(READ)
                await harness.channel.until(
                    lambda: harness.visible_texts == ["✓ `bash: make`\n… `read: log`"]
                )
            await harness.channel.until(lambda: harness.visible_texts == [])
    assert harness.platform_calls.count("send") == harness.platform_calls.count("delete") == 2


async def test_a_status_line_is_removed_after_a_failure(harness: DraftHarness) -> None:
    """A call that did not reach the platform is repeated, so that no line stays behind."""
    harness.features, harness.verbosity = STATUS_LINE, True
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as display:
            assert display is not None
            display.show_step(BASH)
            await harness.channel.until(lambda: harness.visible_texts == ["… `bash: make`"])
            harness.channel.errors.extend([Unreachable("gone"), Unreachable("gone")])
        await harness.channel.until(lambda: harness.visible_texts == [])
    assert harness.platform_calls.count("delete") == 3


@pytest.mark.parametrize(
    ("features", "verbosity"), [(STATUS_LINE, None), (STATUS_LINE, False), (STEPS, False), (STREAMS, True)]
)
async def test_a_room_that_does_not_want_steps_sees_none(
    harness: DraftHarness, features: frozenset[ChannelFeature], verbosity: bool | None
) -> None:
    """Tool calls have a status line on request alone; a platform's own steps unless they are turned off."""
    harness.features, harness.verbosity = features, verbosity
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        display.show_step(BASH)
        if verbosity is not None:
            display.show_step(WAIT)
        if features != STREAMS:
            await harness.verbosity_asked.wait()
    assert not {"send", "steps"} & set(harness.platform_calls)


async def test_a_long_wait_is_shown_without_tool_calls(harness: DraftHarness) -> None:
    """A room that has not asked for steps gets one message with the waits, until the attempt ends."""
    harness.features = STATUS_LINE
    async with harness.drafts() as drafts:
        async with drafts.publish_while("cnv_1", "trn_1") as display:
            assert display is not None
            display.show_step(BASH)
            display.show_step(WAIT)
            await harness.channel.until(lambda: harness.visible_texts == ["… `starting the sandbox`"])
            display.show_step(WAITED)
            display.show_step(READ)
            display.show_step(SAVING)
            await harness.channel.until(
                lambda: harness.visible_texts == ["✓ `starting the sandbox`\n… `saving the files`"]
            )
        await harness.channel.until(lambda: harness.visible_texts == [])
    assert harness.platform_calls.count("send") == harness.platform_calls.count("delete") == 1


async def test_a_wait_that_has_ended_is_not_shown(harness: DraftHarness) -> None:
    """Only a wait that still runs gets a message; a later one is noticed, also after many tool calls."""
    harness.features = STATUS_LINE
    async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as display:
        assert display is not None
        display.show_step(WAIT)
        display.show_step(WAITED)
        await harness.verbosity_asked.wait()
        for number in range(MAX_STEPS):
            display.show_step(ToolStep(id=str(number), title="x"))
        assert "send" not in harness.platform_calls
        display.show_step(SAVING)
        await harness.channel.until(lambda: bool(harness.visible_texts))
        assert harness.visible_texts == ["✓ `starting the sandbox`\n… `saving the files`"]


def test_the_text_of_a_status_line_is_bounded() -> None:
    """The latest calls are shown on a line each, and no title leaves its code span."""
    steps = tuple(ToolStep(id=str(number), title="a`b\nc" * 200) for number in range(40))
    text = ToolSteps(key="k", steps=steps).text
    assert text.startswith("(36 earlier)\n… `a'b c")
    assert (text.count("\n"), text.count("`")) == (4, 8)
    assert len(text) < 500
