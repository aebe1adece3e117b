"""Changes of one account at once: each waits for the one before, and none for one that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from databases import until_waiting
from delivery.database.engine import Connection, Database
from delivery.deliveries.transactions import Transaction
from egress.policy import EgressPolicy
from gateway.accounts import api_keys, persons
from gateway.accounts.persons import Sighting
from gateway.accounts.vault import open_vault
from gateway.config.setting_types import AgentSettings
from gateway.conversations.submissions.conversation_lookup import get_or_create_conversation
from gateway.conversations.submissions.submission import Submission
from gateway.records.bootstrap import Defaults, ensure_defaults
from gateway.records.declared import DeclaredRecords
from gateway.records.records import Records
from gateway.store.accounts import agent_files, records
from gateway.store.accounts.records import Record
from gateway.store.tables import accounts
from turn_worker import add_sandbox_record, open_turn_worker

Step = Callable[[Connection], Awaitable[object]]


async def run_across(database: Database, first: Sequence[Step], second: Sequence[Step]) -> None:
    """Run a transaction of two steps, and between them another one until it waits; both commit."""

    async def other() -> None:
        async with database.begin() as connection:
            for step in second:
                await step(connection)

    async with database.begin() as connection:
        await first[0](connection)
        running = asyncio.create_task(other())
        await until_waiting(database)
        await first[1](connection)
    await running


@pytest.fixture
async def two(database: Database) -> tuple[Record, Record]:
    """Return two records of an account."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
    first = await add_sandbox_record(database, account.id)
    second = replace(first, id="sbx_other", name="other")
    async with database.begin() as connection:
        await records.add(connection, second)
    return first, second


def write(record: Record) -> Step:
    """Return the change of a record without a look at it, as the settings file makes it."""
    return lambda connection: records.update_record(connection, record)


def look(record: Record) -> Step:
    """Return the look at a record that is about to be changed, as a request takes it."""
    return lambda connection: records.get(connection, record.account, record.kind, record.id, locked=True)


def write_file(record: Record, path: str) -> Step:
    """Return the change of a file of a record."""
    return lambda connection: agent_files.write(connection, record.id, path, b"text")


def delete(record: Record) -> Step:
    """Return the deletion of a record."""
    return lambda connection: records.delete_record(connection, record.account, record.id)


async def test_a_request_and_the_settings_file_change_records_at_once(
    database: Database, two: tuple[Record, Record]
) -> None:
    """The file changes two records; a request changes one of them at that time."""
    one, other = two
    await run_across(database, (write(one), write(other)), (look(other), write(other)))


async def test_a_record_is_deleted_while_another_request_changes_it(
    database: Database, two: tuple[Record, Record]
) -> None:
    """The deletion waits for the change."""
    one, _other = two
    await run_across(database, (look(one), write(one)), (delete(one),))
    async with database.read() as connection:
        assert await records.get(connection, one.account, one.kind, one.id) is None


async def test_files_of_two_records_are_changed_in_both_orders(
    database: Database, two: tuple[Record, Record]
) -> None:
    """Each transaction changes a file of both."""
    one, other = two
    await run_across(
        database,
        (write_file(one, "a"), write_file(other, "a")),
        (write_file(other, "b"), write_file(one, "b")),
    )


async def test_two_people_join_each_other_at_once(database: Database) -> None:
    """One of the two codes is taken; the other person is gone by then."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        ann, bob = [
            await persons.see(connection, Sighting(account=account.id, platform="telegram", author=author))
            for author in ("7", "8")
        ]
        of_ann, of_bob = await persons.issue_code(connection, ann), await persons.issue_code(connection, bob)

    async def join(person: str, code: str) -> object:
        async with database.begin() as connection:
            return await persons.link(connection, account.id, person, code)

    joined = await asyncio.gather(join(bob.person, of_ann), join(ann.person, of_bob))
    assert sum(one is not None for one in joined) == 1


async def test_replicas_that_start_at_once_make_the_defaults_once(database: Database, tmp_path: Path) -> None:
    """Four find an empty database and the same settings file."""
    vault = open_vault(tmp_path, ())
    declared = DeclaredRecords(
        sandboxes={f"box{place}": {"provider": "host"} for place in range(5)},
        workspaces={"notes": {}},
        agents={"coder": {"sandbox": "box1"}},
    )

    async def start(place: int) -> Defaults:
        (tmp_path / str(place)).mkdir()
        async with database.begin() as connection:
            return await ensure_defaults(
                connection,
                Records(vault, EgressPolicy()),
                data=tmp_path / str(place),
                agent=AgentSettings(),
                declared=declared,
            )

    started = await asyncio.gather(*(start(place) for place in range(4)))
    assert len({one.account for one in started}) == 1
    async with database.read() as connection:
        assert (await connection.execute(select(func.count()).select_from(accounts))).scalar_one() == 1
        found = await records.list_by_kind(connection, started[0].account, "sandbox")
    assert {one.name for one in found} == {"default", *declared.sandboxes}


async def test_requests_that_name_a_new_conversation_at_once_share_it(
    database: Database, tmp_path: Path
) -> None:
    """One creates it, and the others find it."""
    harness = await open_turn_worker(database, tmp_path)
    named = Submission(
        account=harness.agent.account, text="", asker="", agent=harness.agent.name, conversation="new"
    )

    async def find() -> str:
        async with database.begin() as connection:
            return (await get_or_create_conversation(Transaction(connection), named)).id

    assert len(set(await asyncio.gather(*(find() for _ in range(4))))) == 1
