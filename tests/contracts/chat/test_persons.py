"""People: made when they are first seen, joined by a code, and separated again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from channels.message import Address, Author, RoomKind
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.accounts.persons import MAX_FAILURES, CannotLink, Sighting, link, see, unlink
from gateway.memory.link_command import ONLY_DIRECT, WRONG_CODE
from gateway.memory.memories import Memories, NewMemory, TurnMemory
from gateway.store.accounts import persons as store
from gateway.store.accounts.persons import Identity, Person
from gateway.store.conversations.memories import MemoryScope
from gateway.store.memory_tables import persons as persons_table
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness
from turn_worker import memories_of, memory_of, open_turn_worker

EVE = Author(id="9", name="Eve")


async def turn_memory(harness: IngressHarness, memories: Memories, room: str) -> TurnMemory:
    """Return the notes of the newest turn of a room."""
    turn = (await harness.list_open_turns(room))[-1]
    return await memory_of(memories, harness.database, turn)


async def write(memory: TurnMemory, text: str) -> None:
    """Write a note about the person of a turn."""
    subject = memory.view.subject_of(MemoryScope.PERSON)
    assert subject is not None
    new = NewMemory(account=memory.view.account, subject=subject, text=text, created_by="agt_1")
    await memory.memories.write(new)


async def in_direct_chat(harness: IngressHarness, rest: str = "", *, by: Author = ANN) -> str:
    """Give the command in a direct chat and return the reply."""
    await harness.send_command("link", rest, by=by, address=harness.address(by.id), room=RoomKind.DIRECT)
    return harness.replies[-1]


async def code_of(harness: IngressHarness, *, by: Author = ANN) -> str:
    """Return a new code."""
    return (await in_direct_chat(harness, by=by)).split("`")[1].removeprefix("/link ")


async def identities(harness: IngressHarness) -> list[list[str]]:
    """Return the identities of each person."""
    async with harness.database.read() as connection:
        people = await store.list_after(connection, harness.account, after=None, limit=100)
        return [[one.id for one in await store.list_identities(connection, [who.id])] for who in people]


async def say(harness: IngressHarness, *, by: Author, **changes: Any) -> None:
    """Say something in a direct chat."""
    given = {"address": harness.address(by.id), "room": RoomKind.DIRECT, **changes}
    await harness.send_message("hello", by=by, **given)


async def person_of(harness: IngressHarness, identity: str) -> Person:
    """Return the person with an identity."""
    async with harness.database.read() as connection:
        found = await store.get_identity(connection, harness.account, identity)
        assert found is not None
        person = await store.get(connection, harness.account, found.person)
    assert person is not None
    return person


async def test_people_are_made_when_they_are_first_seen(database: Database) -> None:
    """Each id of a platform is a person; ids of two Slack workspaces are distinct; bots are no persons."""
    harness = await open_ingress_harness(database)
    for _ in range(3):
        await say(harness, by=ANN)
        await harness.send_message("hello", by=BOB)
    for team in ("T1", "T2"):
        address = Address(channel=harness.channel_context.record.id, room="D1", extras={"team": team})
        await say(harness, by=ANN, address=address)
    await harness.send_message("hello", by=replace(EVE, is_bot=True))
    assert await identities(harness) == [["memory:7"], ["memory:8"], ["memory:T1:7"], ["memory:T2:7"]]
    assert (await person_of(harness, "memory:7")).id.startswith("per_")


async def test_notes_and_scopes_follow_a_person(database: Database, tmp_path: Path) -> None:
    """After the link both identities read the notes of both, and work in the same sandbox."""
    harness = await open_ingress_harness(database, name="chats")
    memories = memories_of(database)
    resolver = (await open_turn_worker(database, tmp_path)).environment_resolver
    for who in (ANN, BOB, EVE):
        await say(harness, by=who)
    ann, bob, eve = [await turn_memory(harness, memories, who.id) for who in (ANN, BOB, EVE)]
    await write(ann, "prefers tea")
    await write(bob, "lives in Bonn")
    assert (
        await in_direct_chat(harness, (await code_of(harness)).lower(), by=BOB)
        == "Linked. You are now known as `memory:7`, `memory:8`."
    )
    assert await identities(harness) == [["memory:7", "memory:8"], ["memory:9"]]
    for who in (ANN, BOB):
        memory = await turn_memory(harness, memories, who.id)
        notes = await memory.notes_for("hello")
        assert "prefers tea" in notes
        assert "lives in Bonn" in notes
        talk = await harness.get_conversation(who.id)
        environment = await resolver.resolve(harness.agents["first"], talk.id, person=who.id)
        assert environment.owner.person == "memory:7"
    assert await (await turn_memory(harness, memories, EVE.id)).notes_for("hello") == ""
    assert eve.view.subject_of(MemoryScope.PERSON) is not None


async def test_codes_work_once_for_a_while_and_in_one_account(database: Database) -> None:
    """A wrong, used, replaced, expired or foreign code joins no persons."""
    harness = await open_ingress_harness(database)
    other = await open_ingress_harness(database, name="two")
    assert "same person" in await in_direct_chat(harness, await code_of(harness))
    replaced, code = await code_of(harness), await code_of(harness)
    assert await in_direct_chat(other, code, by=BOB) == WRONG_CODE
    assert await in_direct_chat(harness, replaced, by=BOB) == WRONG_CODE
    assert (await in_direct_chat(harness, code, by=BOB)).startswith("Linked.")
    assert await in_direct_chat(harness, code, by=EVE) == WRONG_CODE
    assert "same person" in await in_direct_chat(harness, await code_of(harness), by=BOB)
    expired = await code_of(harness)
    async with database.begin() as connection:
        past = utc_now() - timedelta(seconds=1)
        await connection.execute(
            update(persons_table).where(persons_table.c.code_digest.is_not(None)).values(code_expires_at=past)
        )
    assert await in_direct_chat(harness, expired, by=EVE) == WRONG_CODE
    assert await identities(harness) == [["memory:7", "memory:8"], ["memory:9"]]


async def test_guesses_are_limited(database: Database) -> None:
    """After a few wrong codes even the right one is refused for a while, and it is not used up."""
    harness = await open_ingress_harness(database)
    code = await code_of(harness)
    for number in range(MAX_FAILURES):
        assert await in_direct_chat(harness, f"GUESS{number}", by=EVE) == WRONG_CODE
    assert "wrong codes: wait" in await in_direct_chat(harness, code, by=EVE)
    assert (await in_direct_chat(harness, code, by=BOB)).startswith("Linked.")


async def test_codes_are_for_direct_chats(database: Database) -> None:
    """In a room no code is given, and none is used."""
    harness = await open_ingress_harness(database)
    code = await code_of(harness)
    for rest in ("", code):
        await harness.send_command("link", rest, by=BOB, room=RoomKind.GROUP)
        assert harness.replies[-1] == ONLY_DIRECT
    assert code not in str(await harness.list_delivery_bodies())
    assert await identities(harness) == [["memory:7"], ["memory:8"]]


async def test_an_identity_is_separated_again(database: Database) -> None:
    """It becomes a person with its own scopes; whichever goes first, no two people share a subject."""
    harness = await open_ingress_harness(database)
    await say(harness, by=BOB)
    await in_direct_chat(harness, await code_of(harness), by=BOB)
    person = await person_of(harness, "memory:8")
    async with database.begin() as connection:
        assert await unlink(connection, person, "memory:9") is None
        own = await unlink(connection, person, "memory:7")
        assert own is not None
        assert own.subject == own.id  # its own id is the subject of the person that keeps the notes
        with pytest.raises(CannotLink, match="only identity"):
            await unlink(connection, person, "memory:8")
    assert sorted(await identities(harness)) == [["memory:7"], ["memory:8"]]
    assert (await person_of(harness, "memory:8")).subject == "memory:7"
    assert (await in_direct_chat(harness, await code_of(harness), by=BOB)).startswith("Linked.")
    assert await identities(harness) == [["memory:8", "memory:7"]] or await identities(harness) == [
        ["memory:7", "memory:8"]
    ]


async def test_a_person_that_is_gone_is_not_joined(database: Database) -> None:
    """A code for a deleted person is refused, and a new sighting makes the person again."""
    harness = await open_ingress_harness(database)
    code = await code_of(harness)
    async with database.begin() as connection:
        with pytest.raises(CannotLink, match="no longer exists"):
            await link(connection, harness.account, "per_gone", code)
    seen = Sighting(account=harness.account, platform="memory", author="8")
    async with database.begin() as connection:
        first = await see(connection, seen)
        again: Identity = await see(connection, seen)
    assert first.person == again.person
