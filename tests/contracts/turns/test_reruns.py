"""A message runs again in the place of its first answer, which stays visible as a branch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.agents.history import HistoryEntry
from gateway.agents.port import Agent, AgentEvent, Finished, MessageCompleted, Tools, TurnInput
from gateway.conversations.commands.branching import (
    BUSY,
    NOTHING,
    CannotRerun,
    rerun_turn,
    undo_last_exchange,
)
from gateway.conversations.submissions.submission import Submission
from gateway.conversations.submissions.submissions import Submissions
from gateway.store.conversations import conversations, handover
from gateway.store.turn_state import TurnState
from gateway.store.turns import branches, turns
from gateway.store.turns.branches import Branch
from gateway.store.turns.turns import Turn
from turn_worker import TurnWorkerHarness, open_turn_worker


@dataclass
class InputRecordingAgent(Agent):
    """Stores its input, and the earlier turns that it had; compacts at "compact"."""

    known: list[list[str]] = field(default_factory=list)

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run a turn."""
        del tools
        self.known.append([str(message["text"]) for one in turn_input.history for message in one.messages])
        own = HistoryEntry(messages=({"text": turn_input.input},), replaces=turn_input.input == "compact")
        yield MessageCompleted(text="fine")
        yield Finished(output="fine", history=own)


class RerunHarness:
    """A conversation whose turns run one after the other."""

    def __init__(self, harness: TurnWorkerHarness) -> None:
        self.harness = harness
        self.agent = InputRecordingAgent()

    async def ask(self, *texts: str) -> list[Turn]:
        """Run turns, and return them."""
        return [await self.finish(await self.harness.add_turn(text)) for text in texts]

    async def finish(self, turn: Turn) -> Turn:
        """Run a queued turn, and return it when it has ended."""
        await self.harness.wake()
        async with self.harness.running(self.agent):
            return await self.harness.wait_for_state(turn, TurnState.COMPLETED)

    async def rerun(self, turn: Turn, text: str | None) -> Turn:
        """Run a turn again, and return the new one when it has ended."""
        new = await self.queue(turn, text)
        return new if new.state is TurnState.COMPLETED else await self.finish(new)

    async def queue(self, turn: Turn, text: str | None) -> Turn:
        """Queue a turn in another one's place."""
        transactions = self.harness.transactions
        queued = await rerun_turn(
            transactions, Submissions(transactions), turn.account, turn.id, text=text, by="key_1"
        )
        assert queued is not None
        async with self.harness.database.read() as connection:
            found = await turns.get(connection, turn.account, queued.turn)
        assert found is not None
        return found

    async def undo(self) -> str:
        """Take back the last exchange."""
        async with self.harness.transactions.begin("command") as tx:
            conversation = await conversations.get_by_id(tx.connection, self.harness.conversation)
            assert conversation is not None
            return await undo_last_exchange(tx, conversation, by="key_1")

    async def branches(self) -> list[Branch]:
        """Return the branches that were left."""
        async with self.harness.database.read() as connection:
            return await branches.list_for_conversation(connection, self.harness.conversation)

    async def undone_events(self) -> list[Event]:
        """Return the events that say what the agent forgot."""
        async with self.harness.database.read() as connection:
            events = await outbox.list_unpublished(connection, self.harness.conversation, after=0)
        return [event for event in events if event.type is EventType.TURN_UNDONE]


@pytest.fixture
async def talk(database: Database, tmp_path: Path) -> RerunHarness:
    """Return a conversation on each kind of database."""
    return RerunHarness(await open_turn_worker(database, tmp_path))


async def test_an_edited_message_is_answered_without_what_followed_it(talk: RerunHarness) -> None:
    """The agent has what was before the message; the first version and all after it are a branch."""
    _one, two, three = await talk.ask("one", "two", "three")
    again = await talk.rerun(two, "two, edited")
    assert (again.input, talk.agent.known[-1]) == ("two, edited", ["one"])
    (left,) = await talk.branches()
    assert (left.turn, list(left.turns), left.rerun) == (two.id, [two.id, three.id], again.id)
    (event,) = await talk.undone_events()
    assert (event.data["turns"], event.data["rerun"]) == ([two.id, three.id], again.id)
    await talk.ask("four")
    assert talk.agent.known[-1] == ["one", "two, edited"]


async def test_a_repeated_request_has_one_new_turn(talk: RerunHarness) -> None:
    """The same text returns it; another text is refused, because its turn is in a branch by now."""
    (one,) = await talk.ask("one")
    first = await talk.rerun(one, "edited")
    assert (await talk.queue(one, "edited")).id == first.id
    with pytest.raises(CannotRerun, match="branch that was left"):
        await talk.queue(one, "edited again")
    assert len(await talk.branches()) == 1
    second = await talk.rerun(first, None)
    assert (second.input, [left.rerun for left in await talk.branches()]) == ("edited", [first.id, second.id])


async def test_what_was_taken_back_is_a_branch_too(talk: RerunHarness) -> None:
    """A message before it can still be edited."""
    one, two = await talk.ask("one", "two")
    assert (await talk.undo()).startswith("Taken back")
    await talk.rerun(one, "uno")
    undone, left = await talk.branches()
    assert (list(undone.turns), undone.rerun) == ([two.id], None)
    assert list(left.turns) == [one.id]
    assert talk.agent.known[-1] == []


async def test_messages_that_cannot_run_again_are_refused(talk: RerunHarness) -> None:
    """While a turn is open, after a summary, and while a person handles the conversation."""
    one, _summary, three = await talk.ask("one", "compact", "three")
    with pytest.raises(CannotRerun, match="summary"):
        await talk.queue(one, "edited")
    queued = await talk.harness.add_turn("open")
    with pytest.raises(CannotRerun, match=BUSY.partition(";")[0]):
        await talk.queue(three, "edited")
    await talk.finish(queued)
    async with talk.harness.database.begin() as connection:
        await handover.start(connection, talk.harness.conversation, by="key_1")
    with pytest.raises(CannotRerun, match="a person handles"):
        await talk.queue(three, "edited")
    assert await talk.branches() == []


async def test_a_history_that_came_with_the_first_message_stays(talk: RerunHarness) -> None:
    """That message can be run again and taken back; then there is nothing more to take back."""
    transactions, agent = talk.harness.transactions, talk.harness.agent
    submission = Submission(
        account=agent.account,
        text="one",
        asker="key_1",
        agent=agent.name,
        history=HistoryEntry(messages=({"text": "before"},)),
    )
    submitted = await Submissions(transactions).submit(submission)
    talk.harness.conversation = submitted.conversation
    async with talk.harness.database.read() as connection:
        first = await turns.get(connection, agent.account, submitted.turn)
    assert first is not None
    await talk.finish(first)
    await talk.rerun(first, "uno")
    await talk.ask("two")
    assert talk.agent.known == [["before"], ["before"], ["before", "uno"]]
    undone = [await talk.undo() for _ in range(3)]
    assert [text.partition(":")[0] for text in undone] == ["Taken back", "Taken back", NOTHING]
    await talk.ask("three")
    assert talk.agent.known[-1] == ["before"]
