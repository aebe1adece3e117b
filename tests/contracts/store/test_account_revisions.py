"""What turns keep of an account: used while the account's revision is the same, and no longer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from delivery.database.engine import Connection, Database
from gateway.accounts import api_keys, persons
from gateway.accounts.account_reader import AccountCache, AccountReader
from gateway.accounts.persons import Sighting
from gateway.agents.port import Agent, AgentEvent, Finished, Tools, TurnInput
from gateway.store.accounts import agent_files, encrypted_columns, records
from gateway.store.accounts import persons as person_store
from gateway.store.accounts.persons import Identity
from gateway.store.accounts.records import Record
from gateway.store.tables import accounts
from gateway.store.tables import records as record_table
from gateway.store.turn_state import TurnState
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An account with a record and two people."""

    account: str
    record: Record
    ann: Identity
    bob: Identity


Change = Callable[[Connection, Kept], Awaitable[object]]


async def open_kept(database: Database) -> Kept:
    """Create the account."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        ann, bob = [
            await persons.see(connection, Sighting(account=account.id, platform="telegram", author=author))
            for author in ("7", "8")
        ]
    record = await add_sandbox_record(database, account.id)
    return Kept(account=account.id, record=record, ann=ann, bob=bob)


async def get_revision(connection: Connection, account: str) -> int:
    """Return the revision of an account."""
    found = await connection.execute(select(accounts.c.revision).where(accounts.c.id == account))
    return int(found.scalar_one())


async def _join(connection: Connection, kept: Kept) -> None:
    code = await persons.issue_code(connection, kept.ann)
    assert await persons.link(connection, kept.account, kept.bob.person, code) is not None


async def _separate(connection: Connection, kept: Kept) -> None:
    await _join(connection, kept)
    before = await get_revision(connection, kept.account)
    await _separate_from(connection, kept, kept.ann.person, kept.bob.id)
    assert await get_revision(connection, kept.account) != before


async def _separate_from(connection: Connection, kept: Kept, person: str, identity: str) -> None:
    found = await person_store.get(connection, kept.account, person)
    assert found is not None
    assert await persons.unlink(connection, found, identity) is not None


async def _see_again(connection: Connection, kept: Kept) -> None:
    """See Bob again, whose identity was deleted, while another person still has it as its subject."""
    await _join(connection, kept)
    joined = await person_store.get_identity(connection, kept.account, kept.bob.id)
    assert joined is not None
    await _separate_from(connection, kept, joined.person, kept.ann.id)
    moved = await person_store.get_identity(connection, kept.account, kept.ann.id)
    assert moved is not None
    await person_store.delete_person(connection, kept.account, moved.person)
    before = await get_revision(connection, kept.account)
    seen = Sighting(account=kept.account, platform="telegram", author="7")
    await persons.see(connection, seen)
    subject = await persons.subject_of(connection, kept.account, "telegram", "7")
    assert (subject == seen.identity) is (await get_revision(connection, kept.account) == before)
    assert subject != seen.identity


async def _put_file(connection: Connection, kept: Kept) -> None:
    await agent_files.write(connection, kept.record.id, "AGENTS.md", b"text")


CHANGES: dict[str, Change] = {
    "a new record": lambda connection, kept: records.add(
        connection, replace(kept.record, id="sbx_2", name="other")
    ),
    "a changed record": lambda connection, kept: records.update_record(
        connection, replace(kept.record, config={"provider": "host"})
    ),
    "a deleted record": lambda connection, kept: records.delete_record(
        connection, kept.account, kept.record.id
    ),
    "a file of a record": _put_file,
    "an identity that is seen again": _see_again,
    "joined people": _join,
    "separated people": _separate,
    "a deleted person": lambda connection, kept: person_store.delete_person(
        connection, kept.account, kept.ann.person
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_gives_its_account_a_new_revision(database: Database, change: str) -> None:
    """The revision of the account is another one, and that of other accounts is the same."""
    kept = await open_kept(database)
    async with database.begin() as connection:
        other, _key = await api_keys.create_account(connection, "two")
        before = await get_revision(connection, kept.account), await get_revision(connection, other.id)
        await CHANGES[change](connection, kept)
        after = await get_revision(connection, kept.account), await get_revision(connection, other.id)
    assert after[0] != before[0]
    assert after[1] == before[1]


async def test_a_new_person_leaves_the_revision(database: Database) -> None:
    """The subject of a person who is new is the identity, as it was before."""
    kept = await open_kept(database)
    async with database.begin() as connection:
        before = await get_revision(connection, kept.account)
        assert await persons.subject_of(connection, kept.account, "telegram", "9") == "telegram:9"
        await persons.see(connection, Sighting(account=kept.account, platform="telegram", author="9"))
        assert await persons.subject_of(connection, kept.account, "telegram", "9") == "telegram:9"
        assert await get_revision(connection, kept.account) == before


async def test_renewed_secrets_give_a_new_revision(database: Database) -> None:
    """A key rotation changes the records that it encrypts again."""
    kept = await open_kept(database)
    async with database.begin() as connection:
        sealed = replace(kept.record, encrypted_secrets={"/token": "old"})
        await records.update_record(connection, sealed)
        before = await get_revision(connection, kept.account)
        _last, renewed = await encrypted_columns.reencrypt_records(connection, "", lambda *_place: "new")
        assert renewed == 1
        assert await get_revision(connection, kept.account) != before


async def test_a_revision_that_was_rolled_back_does_not_come_again(database: Database) -> None:
    """What was read in a transaction that failed is read again after the next change."""
    kept, cache = await open_kept(database), AccountCache()
    with suppress(RuntimeError):
        async with database.begin() as connection:
            changed = replace(kept.record, config={"provider": "docker"})
            await records.update_record(connection, changed)
            lost = await get_revision(connection, kept.account)
            reader = AccountReader(connection, kept.account, cache, lost)
            assert await reader.get_record("sandbox", "box") is not None
            raise RuntimeError
    async with database.begin() as connection:
        await records.update_record(connection, replace(kept.record, config={"provider": "host"}))
        current = await get_revision(connection, kept.account)
        assert current != lost
        reader = AccountReader(connection, kept.account, cache, current)
        found = await reader.get_record("sandbox", "box")
    assert found is not None
    assert found.config["provider"] == "host"


async def test_what_was_read_is_kept_for_its_revision(database: Database) -> None:
    """A reader with a revision reads once; one without a revision always reads."""
    kept, cache = await open_kept(database), AccountCache()
    async with database.begin() as connection:
        revision = await get_revision(connection, kept.account)
        reader = AccountReader(connection, kept.account, cache, revision)
        assert await reader.get_record("sandbox", "box") == kept.record
        await connection.execute(delete(record_table).where(record_table.c.id == kept.record.id))
        assert await reader.get_record("sandbox", "box") == kept.record
        assert await AccountReader(connection, kept.account).get_record("sandbox", "box") is None
        newer = AccountReader(connection, kept.account, cache, revision + 1)
        assert await newer.get_record("sandbox", "box") is None


async def test_accounts_keep_apart_what_has_the_same_name(database: Database) -> None:
    """A record of the same name, and the same revision, is each account's own."""
    cache, one = AccountCache(), await open_kept(database)
    async with database.begin() as connection:
        two, _key = await api_keys.create_account(connection, "two")
    own = await add_sandbox_record(database, two.id)
    async with database.read() as connection:
        found = [
            await AccountReader(connection, account, cache, 1).get_record("sandbox", "box")
            for account in (one.account, two.id)
        ]
    assert found == [one.record, own]


async def test_a_cache_is_bounded() -> None:
    """The least recently used entries are evicted."""
    cache, loaded = AccountCache(size=2), list[str]()

    async def load(key: str) -> str:
        loaded.append(key)
        return key

    for key in ("a", "b", "a", "c", "a", "b"):
        assert await cache.get((key,), 1, lambda key=key: load(key)) == key  # type: ignore[misc]
    assert loaded == ["a", "b", "c", "b"]


class ChangedAgent(Agent):
    """An agent whose record gets other instructions in its first turn; it keeps those of each turn."""

    def __init__(self, harness: TurnWorkerHarness) -> None:
        self._harness = harness
        self.instructions: list[str] = []

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Change the record in the first turn."""
        self.instructions.append(turn_input.agent.instructions)
        if len(self.instructions) == 1:
            record = self._harness.agent
            config = {**record.config, "instructions": "Be long."}
            async with self._harness.database.begin() as connection:
                await records.update_record(connection, replace(record, config=config))
        yield Finished(output="")


async def test_the_next_turn_in_line_has_a_change(database: Database, tmp_path: Path) -> None:
    """A turn that waited while the record was changed is claimed under the same fence, and sees it."""
    harness = await open_turn_worker(database, tmp_path, model="openai:m", instructions="Be brief.")
    agent = ChangedAgent(harness)
    turns = [await harness.add_turn(), await harness.add_turn()]
    async with harness.running(agent):
        await harness.wake()
        for turn in turns:
            await harness.wait_for_state(turn, TurnState.COMPLETED)
    brief, long = agent.instructions
    assert brief.startswith("Be brief.")
    assert long.startswith("Be long.")
