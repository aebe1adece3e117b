"""What becomes of messages that arrive while a turn runs, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from agent_tools import RecordingTools, persona, work
from channels.message import Author
from delivery.broker.port import Lease
from delivery.database.engine import Database
from delivery.events.event import Event, Kind, new_id
from gateway.agents.port import Agent, Delta, Step, Tools, Work
from gateway.conversations.submission import KeyReused, QueueFull, Submission
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn
from gateway.turns.attempt import Performance
from gateway.turns.deltas import Deltas
from ingress_harness import ANN, BOB, NOW, Stage, attachment, open_stage


class Held(Lease):
    """A lease that is never lost."""

    name = "held"

    def check(self) -> None:
        """Find nothing wrong."""

    async def wait_lost(self) -> None:
        """Wait for what does not come."""
        await asyncio.Event().wait()


class HalfWay(Agent):
    """Begins to say something."""

    async def perform(self, work: Work, tools: Tools) -> AsyncGenerator[Step, None]:
        """Say the first half."""
        yield Delta(text="The first ")
        yield Delta(text="half")


async def whispered(*_what: object) -> None:
    """Let nobody hear it."""


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A reception that lets anyone in."""
    return await open_stage(database)


async def busy(stage: Stage, mode: str) -> Turn:
    """Have a turn run in a conversation of this mode."""
    await stage.say("work")
    running = await stage.begin()
    await stage.command("queue", mode)
    return running


async def follow_up(stage: Stage) -> None:
    """Queue what a job's end causes."""
    talk = await stage.talk()
    async with stage.database.begin() as connection:
        job = Turn(
            id=new_id("trn"),
            account=stage.account,
            conversation=talk.id,
            agent=talk.agent,
            trigger="job",
            job=new_id("job"),
            asker=ANN.id,
            input="done",
            created_at=NOW,
        )
        await turns.insert_turn(connection, job)


def performance(stage: Stage, turn: Turn, fence: int) -> Performance:
    """Return a performance of a claimed turn."""
    deltas = Deltas(turn.conversation, turn.id, turn.attempt, whisper=whispered, heard=None)
    return Performance(turn, fence=fence, lease=Held(), ledger=stage.ledger, deltas=deltas, said_before=0)


async def fence_of(stage: Stage, turn: Turn) -> int:
    """Take a conversation over, as the next holder would."""
    async with stage.database.begin() as connection:
        return await conversations.raise_fence(connection, turn.conversation)


async def inputs(stage: Stage) -> list[str]:
    """Return what the open turns ask, in order."""
    return [turn.input for turn in await stage.line()]


async def test_followup_gives_each_message_a_turn(stage: Stage) -> None:
    """In order, each with the number of turns before it."""
    for text in ("one", "two", "three"):
        await stage.say(text)
    assert await inputs(stage) == ["one", "two", "three"]
    queued = [event.data["position"] for event in await stage.told() if event.type is Kind.TURN_QUEUED]
    assert queued == [0, 1, 2]
    line = await stage.line()
    async with stage.database.read() as connection:
        assert [await turn_queue.place_of(connection, turn.id) for turn in line] == [0, 1, 2]


async def test_collect_makes_one_next_turn_of_what_a_person_says(stage: Stage) -> None:
    """Inputs and files are joined in order; another person's words stay a turn of their own."""
    await busy(stage, "collect")
    await stage.say("one", attachments=(attachment("a"),))
    await stage.say("two", by=BOB)
    await stage.say("three", attachments=(attachment("b"),))
    assert await inputs(stage) == ["work", "one\n\nthree", "two"]
    mine = (await stage.line())[1]
    async with stage.database.read() as connection:
        files = await messages.attachments_of(connection, mine.id)
    assert [file["name"] for file in files] == ["a", "b"]
    told = [event for event in await stage.told() if event.type is Kind.MESSAGE_RECEIVED]
    assert [event.data.get("joined", False) for event in told] == [False, False, False, True]


async def test_an_edit_of_a_joined_message_changes_its_part_alone(stage: Stage) -> None:
    """What the others said stays as it is."""
    await busy(stage, "collect")
    first = await stage.say("one")
    await stage.say("two")
    await stage.say("1", key="e", platform_id=first, edited=True)
    assert await inputs(stage) == ["work", "1\n\ntwo"]


async def test_a_turn_begins_with_all_that_joined_it(stage: Stage) -> None:
    """The claim reads the input as it stands then, whatever was read before; nothing joins afterwards."""
    first = await busy(stage, "collect")
    await stage.say("one")
    seen = (await stage.line())[1]
    await stage.say("two")
    fence = await fence_of(stage, seen)
    async with stage.database.begin() as connection:
        await turns.settle(connection, first, fence=fence, state=TurnState.COMPLETED)
        claimed = await turns.claim(connection, seen, fence=fence, runner="here", crashes=0)
        assert not await turn_queue.set_input(connection, replace(seen, input="one\n\ntwo"), "late")
    assert claimed == "one\n\ntwo"


async def test_a_collecting_caller_gets_the_turn_its_message_joined(stage: Stage) -> None:
    """The API answers with that turn, again for a repetition, and refuses the key for other words."""
    await busy(stage, "collect")
    talk = await stage.talk()

    def said(text: str, key: str) -> Submission:
        return Submission(
            account=stage.account, text=text, asker="key_1", conversation=talk.id, key=key, notify=True
        )

    one = await stage.intake.submit(said("one", "k1"))
    two = await stage.intake.submit(said("two", "k2"))
    assert one.turn == two.turn
    again = await stage.intake.submit(said("two", "k2"))
    assert (again.turn, again.repeated) == (one.turn, True)
    with pytest.raises(KeyReused):
        await stage.intake.submit(said("other", "k2"))


@pytest.mark.parametrize("mode", ["followup", "collect", "steer", "interrupt"])
async def test_every_mode_is_bounded(database: Database, mode: str) -> None:
    """Beyond the limit a message is refused politely, whether it would wait or join."""
    stage = await open_stage(database, limit=3)
    await busy(stage, mode)
    for number in range(8):
        await stage.say(str(number))
    spoken = 0
    async with stage.database.read() as connection:
        for turn in await stage.line():
            spoken += len(await messages.of_turn(connection, turn.id))
    assert spoken <= 4
    assert any("at most 3 may" in owed for owed in await stage.owed())
    with pytest.raises(QueueFull):
        await stage.intake.submit(
            Submission(account=stage.account, text="x", asker=ANN.id, conversation=(await stage.talk()).id)
        )


async def test_interrupt_ends_the_running_turn_and_says_why(stage: Stage) -> None:
    """The message is next; more of the same person join it, and the running one is ended here at once."""
    running = await busy(stage, "interrupt")
    await stage.say("no, this")
    await stage.say("and that")
    first, second = await stage.line()
    assert (first.id, first.cancel, first.cancel_why) == (running.id, True, "superseded")
    assert second.input == "no, this\n\nand that"
    assert set(stage.cancelled) == {running.id}


async def test_a_jobs_result_is_never_interrupted_or_joined(stage: Stage) -> None:
    """A follow-up at work goes on, one that waits stays, and `/stop` leaves what has not begun."""
    await stage.say("work")
    await stage.command("queue", "interrupt")
    (first,) = await stage.line()
    await follow_up(stage)
    fence = await fence_of(stage, first)
    async with stage.database.begin() as connection:
        await turns.settle(connection, first, fence=fence, state=TurnState.COMPLETED)
    await stage.begin()
    await stage.say("meanwhile")
    assert [(turn.input, turn.cancel) for turn in await stage.line()] == [
        ("done", False),
        ("meanwhile", False),
    ]
    await follow_up(stage)
    await stage.command("stop")
    assert [(turn.trigger, turn.cancel) for turn in await stage.line()] == [
        ("job", True),
        ("message", True),
        ("job", False),
    ]


async def test_an_open_question_is_not_interrupted(stage: Stage) -> None:
    """A turn that waits for a decision keeps waiting, and the message waits behind it."""
    running = await busy(stage, "interrupt")
    fence = await fence_of(stage, running)
    async with stage.database.begin() as connection:
        await turns.pause(connection, running, fence=fence, state=b"")
    await stage.say("meanwhile")
    assert [turn.cancel for turn in await stage.line()] == [False, False]


async def test_steering_is_heard_once_by_the_running_turn(stage: Stage) -> None:
    """What is said meanwhile is taken in for good, with its turn over; a later attempt hears it all again."""
    running = await busy(stage, "steer")
    fence = await fence_of(stage, running)
    player = performance(stage, running, fence)
    assert await player.hear() == ()
    await stage.say("left")
    await stage.say("no, right", by=BOB)
    assert await player.hear() == ("left", "no, right")
    assert await player.hear() == ("left", "no, right")
    assert await inputs(stage) == ["work"]
    merged = [event for event in await stage.told() if event.data.get("merged_into") == running.id]
    assert [event.type for event in merged] == [Kind.TURN_COMPLETED] * 2
    later = performance(stage, replace(running, attempt=2), await fence_of(stage, running))
    await stage.say("slowly")
    assert await later.hear() == ("left", "no, right", "slowly")


async def test_what_was_not_heard_becomes_the_next_turn(stage: Stage) -> None:
    """A turn that ends before its next step leaves what was said to it in line."""
    running = await busy(stage, "steer")
    await stage.say("left")
    async with stage.database.begin() as connection:
        fence = await conversations.raise_fence(connection, running.conversation)
        await turns.settle(connection, running, fence=fence, state=TurnState.COMPLETED)
    assert await inputs(stage) == ["left"]


async def test_followups_and_cancelled_ones_do_not_steer(stage: Stage) -> None:
    """Only what was said for steering is taken in; a stopped message and a job's result are not."""
    running = await busy(stage, "followup")
    await stage.say("later")
    await stage.command("queue", "steer")
    await stage.say("now")
    await stage.say("never")
    await follow_up(stage)
    async with stage.database.begin() as connection:
        await turns.request_cancel(connection, (await stage.line())[3].id)
    player = performance(stage, running, await fence_of(stage, running))
    assert await player.hear() == ("now",)


async def test_the_queue_is_told_and_set_in_the_chat(stage: Stage) -> None:
    """`/queue` shows the mode, sets it for this conversation, refuses others, and gives it back."""
    await stage.command("queue")
    await stage.command("queue", "COLLECT")
    await stage.command("queue")
    await stage.command("queue", "sideways")
    assert "Queue mode `followup`" in stage.answered[0]
    assert "together" in stage.answered[1]
    assert "Queue mode `collect`" in stage.answered[2]
    assert stage.answered[3].startswith("There is no queue mode `sideways`")
    await stage.command("queue", "default")
    assert (await stage.talk()).queue_mode is None


async def test_what_was_being_said_stays_when_a_turn_is_cut_short(stage: Stage) -> None:
    """The half said message stands in the history, and the end of the turn says why it ended."""
    running = await busy(stage, "interrupt")
    player = performance(stage, running, await fence_of(stage, running))
    await player.play(HalfWay(), work(persona()), RecordingTools())
    player.keep_half_said()
    await stage.say("enough")
    async with player.write("turn.settle") as entry:
        await player.settle(entry, TurnState.CANCELLED, error="cancelled")
    ended: Event = next(event for event in await stage.told() if event.type is Kind.TURN_CANCELLED)
    said = [event.data["text"] for event in await stage.told() if event.type is Kind.MESSAGE_COMPLETED]
    assert ended.data["reason"] == "superseded"
    assert "The first half" in said


async def test_two_say_something_at_the_same_moment(stage: Stage) -> None:
    """Whatever the order, each message is in exactly one turn."""
    await busy(stage, "collect")
    people = [Author(id=str(number % 2)) for number in range(8)]
    await asyncio.gather(*(stage.say(f"m{number}", by=by) for number, by in enumerate(people)))
    line = await stage.line()
    said = sorted(part for turn in line[1:] for part in turn.input.split("\n\n"))
    assert said == sorted(f"m{number}" for number in range(8))
