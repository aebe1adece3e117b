"""What becomes of messages that arrive while a turn runs, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from agent_tools import RecordingTools, agent_spec, turn_input
from channels.message import Author
from delivery.broker.port import Lease
from delivery.database.engine import Database
from delivery.events.event import Event, EventType, new_id
from gateway.agents.port import Agent, AgentEvent, Delta, Tools, TurnInput
from gateway.conversations.submissions.submission import IdempotencyKeyReused, QueueFull, Submission
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn
from gateway.turns.attempt import TurnAttempt
from gateway.turns.deltas import Deltas
from gateway.turns.histories import History, HistoryCache
from ingress_harness import ANN, BOB, NOW, IngressHarness, attachment, open_ingress_harness


class PermanentLease(Lease):
    """A lease that is never lost."""

    name = "held"

    def ensure_held(self) -> None:
        """Find nothing wrong."""

    async def wait_lost(self) -> None:
        """Wait for what does not come."""
        await asyncio.Event().wait()

    def on_lost(self, _report: Callable[[], None]) -> Callable[[], None]:
        """Report nothing."""
        return lambda: None


class PartialTextAgent(Agent):
    """An agent that begins a text."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Say the first half."""
        yield Delta(text="The first ")
        yield Delta(text="half")


async def discard_text(*_what: object) -> None:
    """Drop the text."""


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler that admits everybody."""
    return await open_ingress_harness(database)


async def start_turn(harness: IngressHarness, mode: str) -> Turn:
    """Have a turn run in a conversation of this mode."""
    await harness.send_message("work")
    running = await harness.start_first_turn()
    await harness.send_command("queue", mode)
    return running


async def queue_follow_up(harness: IngressHarness) -> None:
    """Queue what a job's end causes."""
    talk = await harness.get_conversation()
    async with harness.database.begin() as connection:
        job = Turn(
            id=new_id("trn"),
            account=harness.account,
            conversation=talk.id,
            agent=talk.agent,
            trigger="job",
            job=new_id("job"),
            asker=ANN.id,
            input="done",
            created_at=NOW,
        )
        await turns.insert_turn(connection, job)


def make_attempt(harness: IngressHarness, turn: Turn, fence: int) -> TurnAttempt:
    """Return an attempt at a claimed turn."""
    deltas = Deltas(turn.conversation, turn.id, turn.attempt, publish_transient=discard_text, on_text=None)
    return TurnAttempt(
        turn,
        fence=fence,
        lease=PermanentLease(),
        transactions=harness.transactions,
        deltas=deltas,
        replies_before=0,
        histories=HistoryCache(),
        history=History(),
    )


async def raise_fence(harness: IngressHarness, turn: Turn) -> int:
    """Take a conversation over, as the next holder would."""
    async with harness.database.begin() as connection:
        return await conversations.raise_fence(connection, turn.conversation)


async def open_inputs(harness: IngressHarness) -> list[str]:
    """Return what the open turns ask, in order."""
    return [turn.input for turn in await harness.list_open_turns()]


async def test_followup_gives_each_message_a_turn(harness: IngressHarness) -> None:
    """In order, each with the number of turns before it."""
    for text in ("one", "two", "three"):
        await harness.send_message(text)
    assert await open_inputs(harness) == ["one", "two", "three"]
    queued = [
        event.data["position"] for event in await harness.list_events() if event.type is EventType.TURN_QUEUED
    ]
    assert queued == [0, 1, 2]
    line = await harness.list_open_turns()
    async with harness.database.read() as connection:
        assert [await turn_queue.queue_position(connection, turn) for turn in line] == [0, 1, 2]


async def test_collect_makes_one_next_turn_of_what_a_person_says(harness: IngressHarness) -> None:
    """Inputs and files are joined in order; another person's words stay a turn of their own."""
    await start_turn(harness, "collect")
    await harness.send_message("one", attachments=(attachment("a"),))
    await harness.send_message("two", by=BOB)
    await harness.send_message("three", attachments=(attachment("b"),))
    assert await open_inputs(harness) == ["work", "one\n\nthree", "two"]
    mine = (await harness.list_open_turns())[1]
    async with harness.database.read() as connection:
        files = await messages.list_attachments(connection, mine.id)
    assert [file["name"] for file in files] == ["a", "b"]
    reported = [event for event in await harness.list_events() if event.type is EventType.MESSAGE_RECEIVED]
    assert [event.data.get("joined", False) for event in reported] == [False, False, False, True]


async def test_an_edit_of_a_joined_message_changes_its_part_alone(harness: IngressHarness) -> None:
    """Other users' messages stay as they are."""
    await start_turn(harness, "collect")
    first = await harness.send_message("one")
    await harness.send_message("two")
    await harness.send_message("1", key="e", platform_id=first, edited=True)
    assert await open_inputs(harness) == ["work", "1\n\ntwo"]


async def test_a_turn_begins_with_all_that_joined_it(harness: IngressHarness) -> None:
    """The claim reads the input at that moment, whatever was read before; nothing joins afterwards."""
    first = await start_turn(harness, "collect")
    await harness.send_message("one")
    seen = (await harness.list_open_turns())[1]
    await harness.send_message("two")
    fence = await raise_fence(harness, seen)
    async with harness.database.begin() as connection:
        await turns.settle(connection, first, fence=fence, state=TurnState.COMPLETED)
        claimed = await turns.claim(connection, seen, fence=fence, worker_id="here", crashes=0)
        assert not await turn_queue.set_input(connection, replace(seen, input="one\n\ntwo"), "late")
    assert claimed is not None
    assert claimed.input == "one\n\ntwo"


async def test_a_collecting_caller_gets_the_turn_its_message_joined(harness: IngressHarness) -> None:
    """The API answers with that turn, again for a repetition, and refuses the key for other words."""
    await start_turn(harness, "collect")
    talk = await harness.get_conversation()

    def said(text: str, key: str) -> Submission:
        return Submission(
            account=harness.account, text=text, asker="key_1", conversation=talk.id, key=key, notify=True
        )

    one = await harness.submissions.submit(said("one", "k1"))
    two = await harness.submissions.submit(said("two", "k2"))
    assert one.turn == two.turn
    again = await harness.submissions.submit(said("two", "k2"))
    assert (again.turn, again.repeated) == (one.turn, True)
    with pytest.raises(IdempotencyKeyReused):
        await harness.submissions.submit(said("other", "k2"))


@pytest.mark.parametrize("mode", ["followup", "collect", "steer", "interrupt"])
async def test_every_mode_is_bounded(database: Database, mode: str) -> None:
    """Beyond the limit a message is refused politely, whether it would wait or join."""
    harness = await open_ingress_harness(database, limit=3)
    await start_turn(harness, mode)
    for number in range(8):
        await harness.send_message(str(number))
    spoken = 0
    async with harness.database.read() as connection:
        for turn in await harness.list_open_turns():
            spoken += len(await messages.list_for_turn(connection, turn.id))
    assert spoken <= 4
    assert any("its limit (3)" in owed for owed in await harness.list_delivery_bodies())
    with pytest.raises(QueueFull):
        await harness.submissions.submit(
            Submission(
                account=harness.account,
                text="x",
                asker=ANN.id,
                conversation=(await harness.get_conversation()).id,
            )
        )


async def test_a_stopped_queue_has_room_at_once(database: Database) -> None:
    """Turns that `/stop` cancelled no longer count against the limit, even before a worker has ended them."""
    harness = await open_ingress_harness(database, limit=2)
    await start_turn(harness, "followup")
    await harness.send_message("waits")
    await harness.send_command("stop")
    await harness.send_message("next")
    assert [turn.input for turn in await harness.list_open_turns() if not turn.cancel] == ["next"]


async def test_interrupt_ends_the_running_turn_and_says_why(harness: IngressHarness) -> None:
    """The message is next; more of the same person join it, and the running one is ended here at once."""
    running = await start_turn(harness, "interrupt")
    await harness.send_message("no, this")
    await harness.send_message("and that")
    first, second = await harness.list_open_turns()
    assert (first.id, first.cancel, first.cancel_why) == (running.id, True, "superseded")
    assert second.input == "no, this\n\nand that"
    assert set(harness.cancelled) == {running.id}


async def test_a_jobs_result_is_never_interrupted_or_joined(harness: IngressHarness) -> None:
    """A running follow-up goes on, a waiting one stays, and `/stop` spares unstarted ones."""
    await harness.send_message("work")
    await harness.send_command("queue", "interrupt")
    (first,) = await harness.list_open_turns()
    await queue_follow_up(harness)
    fence = await raise_fence(harness, first)
    async with harness.database.begin() as connection:
        await turns.settle(connection, first, fence=fence, state=TurnState.COMPLETED)
    await harness.start_first_turn()
    await harness.send_message("meanwhile")
    assert [(turn.input, turn.cancel) for turn in await harness.list_open_turns()] == [
        ("done", False),
        ("meanwhile", False),
    ]
    await queue_follow_up(harness)
    await harness.send_command("stop")
    assert [(turn.trigger, turn.cancel) for turn in await harness.list_open_turns()] == [
        ("job", True),
        ("message", True),
        ("job", False),
    ]


async def test_an_open_question_is_not_interrupted(harness: IngressHarness) -> None:
    """A turn that waits for a decision keeps waiting, and the message waits behind it."""
    running = await start_turn(harness, "interrupt")
    fence = await raise_fence(harness, running)
    async with harness.database.begin() as connection:
        await turns.pause(connection, running, fence=fence, state=b"")
    await harness.send_message("meanwhile")
    assert [turn.cancel for turn in await harness.list_open_turns()] == [False, False]


async def test_steering_is_received_once_by_the_running_turn(harness: IngressHarness) -> None:
    """Steering input is merged for good, and its turn ends; a later attempt reads all of it again."""
    running = await start_turn(harness, "steer")
    fence = await raise_fence(harness, running)
    player = make_attempt(harness, running, fence)
    assert await player.take_steering() == ()
    await harness.send_message("left")
    await harness.send_message("no, right", by=BOB)
    assert await player.take_steering() == ("left", "no, right")
    assert await player.take_steering() == ("left", "no, right")
    assert await open_inputs(harness) == ["work"]
    merged = [event for event in await harness.list_events() if event.data.get("merged_into") == running.id]
    assert [event.type for event in merged] == [EventType.TURN_COMPLETED] * 2
    later = make_attempt(harness, replace(running, attempt=2), await raise_fence(harness, running))
    later.set_input_text(lambda turn: f"Ann: {turn.input}")
    await harness.send_message("slowly")
    assert await later.take_steering() == ("left", "no, right", "Ann: slowly")
    last = make_attempt(harness, replace(running, attempt=3), await raise_fence(harness, running))
    assert await last.take_steering() == ("left", "no, right", "Ann: slowly")


async def test_steering_that_was_not_received_becomes_the_next_turn(harness: IngressHarness) -> None:
    """A turn that ends before its next step leaves steering input in the queue."""
    running = await start_turn(harness, "steer")
    await harness.send_message("left")
    async with harness.database.begin() as connection:
        fence = await conversations.raise_fence(connection, running.conversation)
        await turns.settle(connection, running, fence=fence, state=TurnState.COMPLETED)
    assert await open_inputs(harness) == ["left"]


async def test_followups_and_cancelled_ones_do_not_steer(harness: IngressHarness) -> None:
    """Only steering input is merged; a stopped message and a job's result are not."""
    running = await start_turn(harness, "followup")
    await harness.send_message("later")
    await harness.send_command("queue", "steer")
    await harness.send_message("now")
    await harness.send_message("never")
    await queue_follow_up(harness)
    async with harness.database.begin() as connection:
        await turns.request_cancel(connection, (await harness.list_open_turns())[3].id)
    player = make_attempt(harness, running, await raise_fence(harness, running))
    assert await player.take_steering() == ("now",)


async def test_the_queue_is_reported_and_set_in_the_chat(harness: IngressHarness) -> None:
    """`/queue` shows the mode, sets it for this conversation, refuses others, and gives it back."""
    await harness.send_command("queue")
    await harness.send_command("queue", "COLLECT")
    await harness.send_command("queue")
    await harness.send_command("queue", "sideways")
    assert "Queue mode `followup`" in harness.replies[0]
    assert "together" in harness.replies[1]
    assert "Queue mode `collect`" in harness.replies[2]
    assert harness.replies[3].startswith("There is no queue mode `sideways`")
    await harness.send_command("queue", "default")
    assert (await harness.get_conversation()).queue_mode is None


async def test_what_was_being_said_stays_when_a_turn_is_cut_short(harness: IngressHarness) -> None:
    """The partial message is in the history, and the turn's end has the reason."""
    running = await start_turn(harness, "interrupt")
    player = make_attempt(harness, running, await raise_fence(harness, running))
    await player.run(PartialTextAgent(), turn_input(agent_spec()), RecordingTools())
    player.keep_partial_text()
    await harness.send_message("enough")
    async with player.begin("turn.settle") as entry:
        await player.settle(entry, TurnState.CANCELLED, error="cancelled")
    ended: Event = next(
        event for event in await harness.list_events() if event.type is EventType.TURN_CANCELLED
    )
    said = [
        event.data["text"]
        for event in await harness.list_events()
        if event.type is EventType.MESSAGE_COMPLETED
    ]
    assert ended.data["reason"] == "superseded"
    assert "The first half" in said


async def test_two_say_something_at_the_same_moment(harness: IngressHarness) -> None:
    """Whatever the order, each message is in exactly one turn."""
    await start_turn(harness, "collect")
    users = [Author(id=str(number % 2)) for number in range(8)]
    await asyncio.gather(*(harness.send_message(f"m{number}", by=by) for number, by in enumerate(users)))
    line = await harness.list_open_turns()
    said = sorted(part for turn in line[1:] for part in turn.input.split("\n\n"))
    assert said == sorted(f"m{number}" for number in range(8))
