"""Histories are append-only: a turn reads what is new to its process and writes what it adds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import bindparam, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import UtcDateTime
from delivery.database.tables import outbox as outbox_table
from delivery.events.event import Event
from gateway.agents.history import HistoryEntry, TurnProgress, decode_entry, encode_entry, encode_progress
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    Checkpoint,
    Finished,
    MessageCompleted,
    Tools,
    TurnInput,
)
from gateway.conversations.commands.branching import BUSY, NOTHING, SUMMARISED, undo_last_exchange
from gateway.migrations import configuration, migrate_up
from gateway.store.conversations import conversations, histories
from gateway.store.history_tables import histories as histories_table
from gateway.store.tables import conversations as conversations_table
from gateway.store.turn_state import TurnState
from gateway.turns.histories import History, HistoryCache
from statement_recorder import recorded_statements
from turn_worker import TurnWorkerHarness, open_turn_worker

WHOLE = (
    b'dovecote-model/1\n{"conversation": {"messages": [{"kind": "request", "parts": []}]}, "notes": ["n"]}'
)
"""A history as earlier versions stored it."""


def entry(*texts: str, replaces: bool = False) -> HistoryEntry:
    """Return an entry with a message for each text."""
    return HistoryEntry(messages=tuple({"text": text} for text in texts), replaces=replaces)


@dataclass
class HistoryAgent(Agent):
    """Answers with the number of messages it has; compacts at "compact" and fails at "fail"."""

    seen: list[list[str]] = field(default_factory=list)

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run a turn."""
        del tools
        known = [str(message["text"]) for one in turn_input.history for message in one.messages]
        self.seen.append(known)
        if turn_input.input == "fail":
            yield Checkpoint(state=encode_progress(TurnProgress(entry=entry("half of it"), state={})))
            raise AgentError("no")
        compacts = turn_input.input == "compact"
        own = entry("memory", replaces=True) if compacts else entry(turn_input.input)
        yield MessageCompleted(text=f"{len(known)}")
        yield Finished(output=f"{len(known)}", history=own)


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """Return a worker's parts on each kind of database."""
    return await open_turn_worker(database, tmp_path)


async def run_turns(harness: TurnWorkerHarness, *inputs: str) -> None:
    """Run turns one after the other."""
    for given in inputs:
        turn = await harness.add_turn(given)
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.FAILED if given == "fail" else TurnState.COMPLETED)


async def stored(harness: TurnWorkerHarness) -> list[list[str]]:
    """Return the texts of each stored row."""
    async with harness.database.read() as connection:
        rows = await connection.execute(select(histories_table.c.body).order_by(histories_table.c.position))
        entries = [decode_entry(row.body) for row in rows]
    return [[str(message["text"]) for message in one.messages] for one in entries if one is not None]


async def test_each_turn_adds_one_row_with_its_own_messages(harness: TurnWorkerHarness) -> None:
    """The next turn gets the messages of all earlier ones, and stores only its own."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "two", "three")
    assert agent.seen == [[], ["one"], ["one", "two"]]
    assert await stored(harness) == [["one"], ["two"], ["three"]]


async def test_a_history_in_memory_is_not_read_again(harness: TurnWorkerHarness) -> None:
    """While no other process has the conversation, only the first turn reads its history."""
    agent = HistoryAgent()
    with recorded_statements() as recorder:
        async with harness.running(agent):
            await run_turns(harness, "one", "two", "three", "four")
    reads = [
        one for one in recorder.executed if "FROM histories" in one.text and one.text.startswith("SELECT")
    ]
    assert len(reads) == 1
    assert len(agent.seen[-1]) == 3


async def test_what_another_process_wrote_is_read(harness: TurnWorkerHarness) -> None:
    """After another holder of the fence the rows after the last known one are read, and no others."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "two")
        turn = await harness.add_turn("elsewhere")
        async with harness.database.begin() as connection:
            await conversations.raise_fence(connection, harness.conversation)
            await HistoryCache().add(connection, turn, entry("by another"), History())
        with recorded_statements() as recorder:
            await harness.wake()
            await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert agent.seen[-1] == ["one", "two", "by another"]
    (read,) = [one for one in recorder.executed if "FROM histories" in one.text]
    assert 2 in (read.parameters.values() if isinstance(read.parameters, dict) else read.parameters)


async def test_a_compaction_replaces_the_rows_before_it(harness: TurnWorkerHarness) -> None:
    """Its row is the whole history then, in the database and for the next turn."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "two", "compact", "three")
    assert agent.seen[-1] == ["memory"]
    assert await stored(harness) == [["memory"], ["three"]]


async def test_the_progress_of_a_failed_turn_is_remembered(harness: TurnWorkerHarness) -> None:
    """The last checkpoint becomes the turn's row."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "fail", "two")
    assert agent.seen[-1] == ["one", "half of it"]
    assert await stored(harness) == [["one"], ["half of it"], ["two"]]


async def test_what_is_not_committed_is_discarded(harness: TurnWorkerHarness) -> None:
    """A row that was rolled back is not in the next turn's history, whatever its fence."""
    cache, turn = HistoryCache(), await harness.add_turn("one")
    async with harness.database.begin() as connection:
        first = await cache.add(connection, turn, entry("one"), History())
    cache.committed(harness.conversation, first, 1)
    with suppress(RuntimeError):
        async with harness.database.begin() as connection:
            known = await cache.load(connection, harness.conversation, 2)
            await cache.add(connection, turn, entry("two"), known)
            raise RuntimeError("rolled back")
    async with harness.database.read() as connection:
        again = await cache.load(connection, harness.conversation, 2)
    assert [one.messages for one in again.get_entries()] == [entry("one").messages]


async def test_the_cache_is_bounded(harness: TurnWorkerHarness) -> None:
    """The conversations that were used longest ago are read again, and a huge one every time."""
    cache = HistoryCache(max_bytes=2500)
    turn = await harness.add_turn("one")
    async with harness.database.begin() as connection:
        known = await cache.add(connection, turn, entry("one"), History())
    for conversation in ("cnv_1", "cnv_2", "cnv_3"):
        cache.committed(conversation, known, 1)
    cache.committed("cnv_huge", History(size=2000), 1)
    with recorded_statements() as recorder:
        async with harness.database.read() as connection:
            for conversation in ("cnv_3", "cnv_2", "cnv_1", "cnv_huge"):
                await cache.load(connection, conversation, 1)
    assert sum("FROM histories" in one.text for one in recorder.executed) == 2


async def test_rows_of_an_earlier_version_are_migrated_and_read(database_url: str) -> None:
    """A history that was one value is the first row, and its notes are kept."""
    engine = create_async_engine(database_url)
    now = bindparam("now", utc_now(), type_=UtcDateTime())
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade_to, "0002")
        await connection.execute(
            text("INSERT INTO accounts (id, name, created_at) VALUES ('acc_1', 'one', :now)").bindparams(now)
        )
        for conversation, history in (("cnv_1", WHOLE), ("cnv_2", None)):
            await connection.execute(
                text(
                    "INSERT INTO conversations (id, account, agent, fence, history, created_at) "
                    "VALUES (:id, 'acc_1', 'agt_1', 0, :history, :now)"
                ).bindparams(now),
                {"id": conversation, "history": history},
            )
    await engine.dispose()
    await migrate_up(database_url)
    migrated = Database(database_url)
    async with migrated.read() as connection:
        first = await HistoryCache().load(connection, "cnv_1", 1)
        assert await histories.list_after(connection, "cnv_2") == []
    await migrated.close()
    (whole,) = first.get_entries()
    assert (len(whole.messages), whole.notes, whole.replaces) == (1, ("n",), True)


def _upgrade_to(connection: object, revision: str) -> None:
    from alembic import command

    command.upgrade(configuration(connection), revision)  # type: ignore[arg-type]


def test_an_entry_survives_its_bytes() -> None:
    """Half characters too, which a model may write."""
    reported = HistoryEntry(messages=({"text": "\ud800 ü"},), notes=("a",), replaces=True)
    read = decode_entry(encode_entry(reported))
    assert read is not None
    assert (read.messages, read.notes, read.replaces) == (
        reported.messages,
        reported.notes,
        reported.replaces,
    )


async def undo(harness: TurnWorkerHarness) -> str:
    """Take back the last exchange and return the reply."""
    async with harness.transactions.begin("command") as tx:
        found = await conversations.get_by_id(tx.connection, harness.conversation)
        assert found is not None
        return await undo_last_exchange(tx, found, by="ann")


async def test_the_last_exchange_is_taken_back_and_nothing_is_erased(harness: TurnWorkerHarness) -> None:
    """The next turn does not have it, whether its worker has the history in memory or not."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "two", "three")
        assert "`three`" in await undo(harness)
        assert "`two`" in await undo(harness)
        await run_turns(harness, "four")
    async with harness.running(agent):
        await run_turns(harness, "five")
        assert "`five`" in await undo(harness)
        await run_turns(harness, "six")
    assert agent.seen[3:] == [["one"], ["one", "four"], ["one", "four"]]
    assert await stored(harness) == [["one"], ["two"], ["three"], [], [], ["four"], ["five"], [], ["six"]]
    async with harness.database.read() as connection:
        events = (await connection.execute(select(outbox_table.c.body).order_by(outbox_table.c.n))).all()
    undone = [one for one in map(Event.decode, (row.body for row in events)) if one.type == "turn.undone"]
    assert [one.data["text"] for one in undone] == ["three", "two", "five"]
    assert [one.data["by"] for one in undone] == ["ann"] * 3


async def test_a_jobs_result_is_taken_back_with_what_asked_for_it(harness: TurnWorkerHarness) -> None:
    """An exchange is a person's message with all that followed it."""
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "start a job")
        result = await harness.add_turn("exit code 0", trigger="job")
        await harness.wake()
        await harness.wait_for_state(result, TurnState.COMPLETED)
        assert "`start a job`" in await undo(harness)
        await run_turns(harness, "two")
    assert agent.seen[-1] == ["one"]


async def test_what_cannot_be_taken_back_is_explained(harness: TurnWorkerHarness) -> None:
    """Nothing was said, a turn is open, or the exchange is part of a summary."""
    assert await undo(harness) == NOTHING
    agent = HistoryAgent()
    async with harness.running(agent):
        await run_turns(harness, "one", "compact")
        assert await undo(harness) == SUMMARISED
        await run_turns(harness, "two")
    waiting = await harness.add_turn("three")
    async with harness.database.read() as connection:
        before = await connection.scalar(select(conversations_table.c.fence))
    assert await undo(harness) == BUSY
    async with harness.database.read() as connection:
        assert await connection.scalar(select(conversations_table.c.fence)) == before
    async with harness.running(agent):
        await harness.wake()
        await harness.wait_for_state(waiting, TurnState.COMPLETED)
        assert "`three`" in await undo(harness)
        assert "`two`" in await undo(harness)
        assert await undo(harness) == SUMMARISED
