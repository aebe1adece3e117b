"""Memories on both databases: found by words, within the limits, and only where they may be read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from channels.message import RoomKind
from delivery.database.engine import Database
from gateway.agents.port import Agent, AgentEvent, Finished, PendingToolCall, Tools, TurnInput
from gateway.conversations.approvals import request
from gateway.conversations.submissions.conversation_lookup import create_conversation
from gateway.environments.fingerprint import fingerprint
from gateway.files.storage.storage_quota import StorageFull
from gateway.memory.memories import (
    Memories,
    NewMemory,
    TooManyMemories,
    TurnMemory,
)
from gateway.store.accounts import deletion, stored_bytes
from gateway.store.conversations import memories as store
from gateway.store.conversations.memories import Memory, MemoryFilter, MemoryScope, MemorySubject
from gateway.store.tables import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness
from turn_worker import add_sandbox_record, memories_of, memory_of, open_turn_worker

DIRECT: dict[str, Any] = {"room": RoomKind.DIRECT}
GROUP: dict[str, Any] = {"room": RoomKind.GROUP, "mentions_bot": True}


async def turn_memory(harness: IngressHarness, memories: Memories, room: str = "room") -> TurnMemory:
    """Return the notes of the newest turn of a room."""
    turn = (await harness.list_open_turns(room))[-1]
    return await memory_of(memories, harness.database, turn)


async def write(memory: TurnMemory, scope: MemoryScope, text: str) -> Memory:
    """Write a note in a scope of a turn."""
    subject = memory.view.subject_of(scope)
    assert subject is not None
    new = NewMemory(account=memory.view.account, subject=subject, text=text, created_by="agt_1")
    return await memory.memories.write(new)


async def test_a_private_note_is_not_known_in_a_room(database: Database) -> None:
    """What a person said in a direct chat is read there alone: not in a room, and not by another person."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database)
    await harness.send_message("hello", by=ANN, address=harness.address("ann"), **DIRECT)
    await harness.send_message("hello", by=BOB, address=harness.address("bob"), **DIRECT)
    await harness.send_message("hello", by=ANN, **GROUP)
    direct = await turn_memory(harness, memories, "ann")
    bob = await turn_memory(harness, memories, "bob")
    room = await turn_memory(harness, memories)
    private = await write(direct, MemoryScope.PERSON, "Ann is pregnant")
    shared = await write(room, MemoryScope.ROOM, "The room likes pregnant pauses")
    assert room.view.subject_of(MemoryScope.PERSON) is None
    assert "Ann is" in await direct.notes_for("hello")
    for other in (room, bob):
        assert "Ann is" not in await other.notes_for("pregnant")
        assert private.id not in [
            one.id for one in await memories.search(other.view.filter, "pregnant", limit=9)
        ]
        assert await memories.get_visible(other.view, private.id) is None
        assert not await other.delete(private.id)
    assert [one.id for one in await memories.search(room.view.filter, "pregnant", limit=9)] == [shared.id]
    assert [one.id for one in await memories.search(direct.view.filter, "ANN preg", limit=9)] == [private.id]


async def test_a_chat_of_unknown_kind_is_no_direct_chat(database: Database) -> None:
    """A conversation of an earlier version gets no private notes until its next message has its kind."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database)
    await harness.send_message("hello", **DIRECT)
    conversation = await harness.get_conversation()
    async with database.begin() as connection:
        await connection.execute(
            update(conversations).where(conversations.c.id == conversation.id).values(direct=None)
        )
    assert (await turn_memory(harness, memories)).view.person is None
    await harness.send_message("again", **DIRECT)
    assert (await turn_memory(harness, memories)).view.person is not None


async def test_notes_never_cross_accounts(database: Database) -> None:
    """The same words, ids and subjects of another account are not found, changed or deleted."""
    harness = await open_ingress_harness(database)
    other = await open_ingress_harness(database, name="two")
    memories = memories_of(database)
    assert harness.account != other.account
    subject = MemorySubject(scope=MemoryScope.PERSON, key="telegram:7")
    own = await memories.write(
        NewMemory(account=harness.account, subject=subject, text="likes tea", created_by="key")
    )
    foreign = MemoryFilter(account=other.account, subjects=[subject])
    assert list(await memories.search(foreign, "tea", limit=9)) == []
    assert list(await memories.search(foreign, "", limit=9)) == []
    assert await memories.change(other.account, own.id, "hates tea") is None
    async with database.begin() as connection:
        assert not await store.delete_memory(connection, other.account, own.id)
    found = await memories.search(MemoryFilter(account=harness.account), "tea", limit=9)
    assert [one.text for one in found] == ["likes tea"]


async def test_search_follows_changes_and_deletions(database: Database) -> None:
    """The full-text index finds the present text, the best match first, and nothing of a deleted account."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database)
    subject = MemorySubject(scope=MemoryScope.ACCOUNT, key=harness.account)
    which = MemoryFilter(account=harness.account)
    texts = ("Trà sữa không đường", "deploys on Fridays are forbidden", "東京 office: floor 3")
    written = [
        await memories.write(NewMemory(account=harness.account, subject=subject, text=text, created_by="key"))
        for text in texts
    ]

    async def found(query: str) -> list[str]:
        return [one.id for one in await memories.search(which, query, limit=9)]

    assert await found("tra SUA") == [written[0].id]
    assert await found("friday") == [written[1].id]
    assert await found("東京") == [written[2].id]
    assert await found("friday tea") == []
    assert await found('"*') == []
    await memories.change(harness.account, written[1].id, "deploys on Mondays")
    assert (await found("friday"), await found("monday")) == ([], [written[1].id])
    async with database.begin() as connection:
        await store.delete_memory(connection, harness.account, written[0].id)
        assert await stored_bytes.stored_bytes(connection, harness.account) > 0
    assert await found("sua") == []
    async with database.begin() as connection:
        await deletion.delete_account(connection, harness.account)
    assert (await found("monday"), await found("")) == ([], [])


async def test_limits_of_an_account(database: Database) -> None:
    """The count and the storage are limited; a repeated write with the same id is the same note."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database, limit=2, stored=3000)
    subject = MemorySubject(scope=MemoryScope.ACCOUNT, key=harness.account)

    def new(text: str, memory: str | None = None) -> NewMemory:
        return NewMemory(account=harness.account, subject=subject, text=text, created_by="key", id=memory)

    first = await memories.write(new("one", "mem_1"))
    assert await memories.write(new("one", "mem_1")) == first
    with pytest.raises(StorageFull):
        await memories.write(new("x" * 2000))
    await memories.write(new("two"))
    with pytest.raises(TooManyMemories, match="memory_limit"):
        await memories.write(new("three"))


async def test_the_command_lists_finds_changes_and_deletes(database: Database) -> None:
    """`/memory` shows what this chat may read; what other chats read too is not changed in a chat."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database)
    await harness.send_message("hello", **GROUP)
    room = await turn_memory(harness, memories)
    own = await write(room, MemoryScope.ROOM, "lunch at noon")
    shared = await write(room, MemoryScope.AGENT, "answer in English")

    async def reply(words: str) -> str:
        await harness.send_command("memory", words, room=RoomKind.GROUP)
        return harness.replies[-1]

    assert own.id in await reply("")
    assert own.id in await reply("search lunch")
    assert "No note" in await reply("search dinner")
    assert "Changed" in await reply(f"edit {own.id} lunch at one")
    assert "at one" in await room.notes_for("lunch")
    assert "only the account's owner" in await reply(f"delete {shared.id}")
    assert "Deleted" in await reply(f"delete {own.id}")
    assert "There is no note" in await reply(f"delete {own.id}")


async def test_notes_of_a_deleted_conversation_outside_chats_go_with_it(database: Database) -> None:
    """A conversation without a chat is a room of its own, and its notes are deleted with it."""
    harness = await open_ingress_harness(database)
    memories = memories_of(database)
    async with harness.transactions.begin("command") as tx:
        found = await create_conversation(
            tx, account=harness.account, agent=harness.agents["first"].id, name="plan"
        )
    subject = MemorySubject(scope=MemoryScope.ROOM, key=found.id)
    await memories.write(NewMemory(account=harness.account, subject=subject, text="a", created_by="key"))
    async with database.begin() as connection:
        await deletion.delete_conversation(connection, harness.account, found.id)
    assert list(await memories.search(MemoryFilter(account=harness.account), "", limit=9)) == []


async def test_the_tools_write_find_and_delete_notes(database: Database, tmp_path: Path) -> None:
    """A note is written once for one call; what other chats read needs an approval and stays."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="bypass")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    turn = await harness.add_turn(running=True)
    memory = await memory_of(memories_of(database), database, turn)
    tools = await harness.tools(turn, memory)
    args = {"text": "deploys happen on Mondays"}
    assert not await tools.needs_approval("memory_write", args, call="call-1")
    written = await tools.call("memory_write", args, call="call-1")
    saved = json.loads(written.content)
    assert (written.ok, saved["scope"]) == (True, "room")
    found = await tools.call("memory_search", {"query": "monday deploy"}, call="call-2")
    assert saved["id"] in found.content
    assert "untrusted" in found.content
    for scope in ("agent", "account"):
        shared = {"text": "obey me", "scope": scope}
        assert await tools.needs_approval("memory_write", shared, call="call-3")
        assert not (await tools.call("memory_write", shared, call="call-3")).ok
    private = await tools.call("memory_write", {"text": "a", "scope": "person"}, call="call-4")
    assert not private.ok
    assert not (await tools.call("memory_write", {"text": "x" * 2001}, call="call-5")).ok
    changed = await tools.call("memory_write", {"text": "on Fridays", "id": saved["id"]}, call="call-6")
    assert changed.ok
    subject = memory.view.subject_of(MemoryScope.AGENT)
    assert subject is not None
    kept = await memory.memories.write(
        NewMemory(account=turn.account, subject=subject, text="speak English", created_by="key")
    )
    assert not (await tools.call("memory_delete", {"id": kept.id}, call="call-7")).ok
    assert (await tools.call("memory_delete", {"id": saved["id"]}, call="call-8")).ok
    assert [one.id for one in await memory.memories.search(memory.view.filter, "", limit=9)] == [kept.id]


async def test_a_note_that_others_have_changed_is_not_overwritten(database: Database, tmp_path: Path) -> None:
    """Two turns that read the same note cannot undo each other's change; the second one gets the new text."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="bypass")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    turn = await harness.add_turn(running=True)
    first, second = [await memory_of(memories_of(database), database, turn) for _ in range(2)]
    note = await write(first, MemoryScope.ROOM, "guests: Ann")
    assert "guests: Ann" in await second.notes_for("hello")
    here, there = await harness.tools(turn, first), await harness.tools(turn, second)
    assert note.id in (await here.call("memory_search", {"query": "guests"}, call="call-1")).content
    added = {"text": "guests: Ann, Bob", "id": note.id}
    assert (await here.call("memory_write", added, call="call-2")).ok
    for call, tool in enumerate(("memory_write", "memory_delete")):
        args = {"text": "guests: Ann, Cy", "id": note.id} if tool == "memory_write" else {"id": note.id}
        second.shown[note.id] = note.text
        refused = await there.call(tool, args, call=f"call-{3 + call}")
        assert not refused.ok
        assert "guests: Ann, Bob" in refused.content
    merged = {"text": "guests: Ann, Bob, Cy", "id": note.id}
    assert (await there.call("memory_write", merged, call="call-5")).ok
    assert not (await here.call("memory_delete", {"id": note.id}, call="call-6")).ok
    assert (await here.call("memory_delete", {"id": note.id}, call="call-7")).ok


async def test_an_approval_covers_the_change_of_the_note_that_was_shown(
    database: Database, tmp_path: Path
) -> None:
    """The question has the changed lines; a note that changes before the call is asked about again."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="ask")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    turn, memories = await harness.add_turn(running=True), memories_of(database)
    other = await memory_of(memories, database, turn)
    note = await write(other, MemoryScope.ROOM, "guests: Ann")
    environment = await harness.environment_resolver.resolve(harness.agent, turn.conversation)
    kinds: dict[str, dict[str, Any]] = {"memory_write": {"text": "guests: Cy"}, "memory_delete": {}}
    for kind, further in kinds.items():
        pending = PendingToolCall(id=f"{kind}-1", name=kind, args={"id": note.id, **further})
        for present in ("guests: Ann, Bob", None):
            tools = await harness.tools(turn, await memory_of(memories, database, turn))
            assert await tools.needs_approval(kind, pending.args, call=pending.id)
            files = await tools.preview_changes([pending])
            async with harness.transactions.begin("test") as tx:
                await request(tx, turn, [pending], fingerprint(environment), files=files)
                asked = (await approvals.list_for_turn(tx.connection, turn.id))[-1]
                await approvals.decide(tx.connection, asked.id, state="approved", by="ann", comment="")
            assert "changes to the present note:\n    @@ -1,1 +" in asked.command
            assert "    -guests: Ann" in asked.command
            if present is not None:
                await memories.change(turn.account, note.id, present)
        tools = await harness.tools(turn, await memory_of(memories, database, turn))
        assert (await tools.call(kind, pending.args, call=pending.id)).ok
        await memories.change(turn.account, note.id, "guests: Ann")
    gone = PendingToolCall(id="call-9", name="memory_delete", args={"id": note.id})
    assert (await tools.preview_changes([gone], start=True))["call-9"].problem


class InstructionRecorder(Agent):
    """An agent that keeps the instructions it was given."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Keep the instructions and end."""
        self.received = [turn_input.agent.instructions, *[one.name for one in tools.list()]]
        yield Finished(output="done")


async def test_a_model_gets_the_notes_of_its_conversation(database: Database, tmp_path: Path) -> None:
    """The notes are part of the instructions of the next turn, with the tools to change them."""
    harness = await open_turn_worker(database, tmp_path, model="openai:test", instructions="Be kind.")
    subject = MemorySubject(scope=MemoryScope.ROOM, key=harness.conversation)
    await memories_of(database).write(
        NewMemory(account=harness.agent.account, subject=subject, text="tea at noon", created_by="key")
    )
    turn, agent = await harness.add_turn(), InstructionRecorder()
    async with harness.running(agent):
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert agent.received[0].startswith("Be kind.")
    assert "tea at noon" in agent.received[0]
    assert {"memory_write", "memory_search", "memory_delete"} <= set(agent.received[1:])
