"""What every database must hold to: names, tenants, digests, one winner, clean removal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from delivery.database.engine import Database, metadata
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from delivery.webhooks import endpoints
from delivery.webhooks.endpoints import Endpoint
from gateway.accounts import api_keys
from gateway.accounts.api_keys import AccountNameTaken, ApiKeyAuthenticator, key_digest
from gateway.store.accounts import accounts as account_store
from gateway.store.accounts import deletion, idempotency, records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import jobs
from gateway.store.turns.jobs import Job

NASTY = ["*", ">", "a.b", "\r\n", "../x", "x" * 4096, "\N{PILE OF POO}", "' OR 1=1 --", "%", "_"]


async def _account(database: Database, name: str) -> tuple[str, str]:
    async with database.begin() as connection:
        account, key = await api_keys.create_account(connection, name)
    return account.id, key


def _record(account: str, name: str, kind: records.RecordKind = "workspace") -> Record:
    now = datetime.now(UTC)
    return Record(
        id=new_id(records.ID_PREFIXES[kind]),
        account=account,
        kind=kind,
        name=name,
        config={"nested": {"list": [1, "zwei", None]}},
        encrypted_secrets={"/a": "v1.x.y"},
        created_at=now,
        updated_at=now,
    )


def _endpoint(account: str, name: str | None = None, origin: str = endpoints.RECORD) -> Endpoint:
    return Endpoint(
        id=new_id("whk"),
        account=account,
        name=name,
        origin=origin,
        url="https://example.org/hook",
        events=("agent.finished", "job.*"),
        secret=b"sealed",
        created_at=datetime.now(UTC),
    )


async def test_a_key_is_found_by_its_digest_alone(database: Database) -> None:
    """The text of a key is nowhere in the database; its digest finds account and scopes."""
    account, key = await _account(database, "one")
    async with database.read() as connection:
        found = await account_store.get_key_by_digest(connection, key_digest(key))
        nothing = await account_store.get_key_by_digest(connection, key_digest(key + "x"))
    assert found is not None
    assert (found.account, found.scopes, found.revoked_at) == (account, api_keys.ALL_SCOPES, None)
    assert nothing is None


async def test_an_account_name_is_taken_once(database: Database) -> None:
    """A second account of the same name is refused, and leaves nothing behind."""
    await _account(database, "one")
    with pytest.raises(AccountNameTaken):
        await _account(database, "one")


async def test_a_revoked_key_opens_nothing_more(database: Database) -> None:
    """Authentication ends with the revocation, here at once."""
    _account_id, key = await _account(database, "one")
    door = ApiKeyAuthenticator(database)
    principal = await door.authenticate(key)
    assert principal is not None
    reported: list[str] = []
    door.on_revoked.append(reported.append)
    assert await door.revoke(principal.key)
    assert await door.authenticate(key) is None
    assert not await door.is_valid(principal)
    assert reported == [principal.key]


async def test_a_principal_ends_with_a_scope_of_its_key(database: Database) -> None:
    """A ticket or link with a scope that its key has lost is not valid; open connections are reported."""
    _account_id, key = await _account(database, "one")
    door = ApiKeyAuthenticator(database)
    principal = await door.authenticate(key)
    assert principal is not None
    reported: list[tuple[str, frozenset[str]]] = []
    door.on_scopes.append(lambda key, scopes: reported.append((key, scopes)))
    async with database.begin() as connection:
        await account_store.update_key(connection, principal.key, scopes=("read",))
    door.apply_scopes(principal.key, ("read",))
    assert not await door.is_valid(principal)
    assert await door.is_valid(replace(principal, scopes=frozenset({"read"})))
    assert await door.authenticate(key) == replace(principal, scopes=frozenset({"read"}))
    assert reported == [(principal.key, frozenset({"read"}))]


async def test_a_revocation_elsewhere_is_seen_within_a_second(database: Database) -> None:
    """Another replica's memory of a key ends after a second."""
    now = [0.0]
    here, there = ApiKeyAuthenticator(database), ApiKeyAuthenticator(database, clock=lambda: now[0])
    _account_id, key = await _account(database, "one")
    principal = await there.authenticate(key)
    assert principal is not None
    await here.revoke(principal.key)
    now[0] = 1.0
    assert await there.authenticate(key) is None


async def test_records_come_back_as_they_went_in(database: Database) -> None:
    """Config, sealed secrets and moments survive the database."""
    account, _key = await _account(database, "one")
    record = _record(account, "mine")
    async with database.begin() as connection:
        await records.add(connection, record)
        found = await records.get(connection, account, "workspace", "mine")
    assert found == record


async def test_a_record_is_found_by_id_and_name_in_its_account_only(database: Database) -> None:
    """No id and no name opens another account's record."""
    one, _ = await _account(database, "one")
    two, _ = await _account(database, "two")
    record = _record(one, "mine")
    async with database.begin() as connection:
        await records.add(connection, record)
        for wanted in (record.id, "mine"):
            assert await records.get(connection, one, "workspace", wanted) is not None
            assert await records.get(connection, two, "workspace", wanted) is None
            assert await records.get(connection, one, "agent", wanted) is None
        assert not await records.delete_record(connection, two, record.id)
        await records.update_record(connection, replace(record, account=two, name="stolen"))
        assert await records.get(connection, one, "workspace", "mine") is not None


@pytest.mark.parametrize("wanted", NASTY)
async def test_a_strange_id_finds_nothing(database: Database, wanted: str) -> None:
    """A pattern, a path or SQL is an ordinary unknown id."""
    account, _ = await _account(database, "one")
    async with database.begin() as connection:
        await records.add(connection, _record(account, "mine"))
        assert await records.get(connection, account, "workspace", wanted) is None
        assert await endpoints.get(connection, account, wanted) is None
        assert await account_store.get_key(connection, account, wanted) is None
        assert await conversations.get(connection, account, wanted) is None


async def test_a_name_is_taken_once_within_account_and_kind(database: Database) -> None:
    """The same name is free for another kind and another account."""
    one, _ = await _account(database, "one")
    two, _ = await _account(database, "two")
    async with database.begin() as connection:
        await records.add(connection, _record(one, "mine"))
        await records.add(connection, _record(one, "mine", "agent"))
        await records.add(connection, _record(two, "mine"))
    with pytest.raises(IntegrityError):
        async with database.begin() as connection:
            await records.add(connection, _record(one, "mine"))


async def test_pages_hold_every_record_once(database: Database) -> None:
    """Walking by the last id misses nothing and repeats nothing."""
    account, _ = await _account(database, "one")
    async with database.begin() as connection:
        for number in range(7):
            await records.add(connection, _record(account, f"r{number}"))
    seen: list[str] = []
    async with database.read() as connection:
        while page := await records.list_by_kind(
            connection, account, "workspace", after=seen[-1] if seen else "", limit=3
        ):
            seen += [record.id for record in page]
    assert len(seen) == len(set(seen)) == 7


async def test_endpoints_of_agents_are_found_by_id_alone(database: Database) -> None:
    """An endpoint of an agent is not listed among the account's; that of a turn is not found either."""
    account, _ = await _account(database, "one")
    record, of_agent = _endpoint(account, "mine"), _endpoint(account, origin="agent:agt_1")
    of_turn = _endpoint(account, origin="turn:trn_1")
    async with database.begin() as connection:
        for one in (record, of_agent, of_turn):
            await endpoints.add(connection, one)
        assert await endpoints.list_for_account(connection, account, after="", limit=10) == [record]
        assert await endpoints.get(connection, account, of_agent.id) == of_agent
        assert await endpoints.get(connection, account, of_turn.id) is None
        assert await endpoints.get_by_origin(connection, account, "agent:agt_1") == of_agent


async def test_one_of_many_claims_an_idempotency_key(database: Database) -> None:
    """Of twenty concurrent requests with one key, one is executed."""
    account, _ = await _account(database, "one")
    claims = await asyncio.gather(*(idempotency.claim(database, account, "key", "digest") for _ in range(20)))
    assert claims.count(True) == 1


async def test_one_of_many_takes_over_an_abandoned_key(database: Database) -> None:
    """When the first request died unanswered, a waiting one takes over."""
    account, _ = await _account(database, "one")
    await idempotency.claim(database, account, "key", "digest")
    async with database.read() as connection:
        kept = await idempotency.get(connection, account, "key")
    assert kept is not None

    async def take() -> bool:
        async with database.begin() as connection:
            return await idempotency.reclaim(connection, account, "key", since=kept.created_at)

    assert (await asyncio.gather(*(take() for _ in range(5)))).count(True) == 1


async def test_answers_are_stored_and_deleted(database: Database) -> None:
    """An answer is found under its key until it is older than the window."""
    account, _ = await _account(database, "one")
    await idempotency.claim(database, account, "key", "digest")
    async with database.begin() as connection:
        await idempotency.save(connection, account, "key", status=201, body=b"sealed")
        kept = await idempotency.get(connection, account, "key")
        assert kept is not None
        assert (kept.status, kept.body) == (201, b"sealed")
        assert (
            await idempotency.delete_before(connection, before=datetime.now(UTC) + timedelta(seconds=1)) == 1
        )
        assert await idempotency.get(connection, account, "key") is None


async def test_jobs_are_listed_newest_first_whatever_their_ids(database: Database) -> None:
    """A job's id does not reveal its time; pages are ordered by time and contain every job once."""
    account, _ = await _account(database, "one")
    start = datetime.now(UTC)
    async with database.begin() as connection:
        conversation = Conversation(id=new_id("cnv"), account=account, agent="agt_1", created_at=start)
        await conversations.insert_conversation(connection, conversation)
        for age, name in enumerate(["job_m", "job_z", "job_a", "job_q", "job_b"]):
            job = Job(
                id=name,
                account=account,
                conversation=conversation.id,
                turn="trn_1",
                agent="agt_1",
                asker="",
                command="true",
                provider="host",
                sandbox="box",
                sandbox_record=None,
                workspace=None,
                token_digest=b"d",
                token_sealed=b"s",
                created_at=start - timedelta(seconds=age // 2),
            )
            await jobs.insert_job(connection, job)
    seen: list[str] = []
    async with database.read() as connection:
        while page := await jobs.list_for_account(
            connection, account, after=seen[-1] if seen else None, limit=2
        ):
            seen += [job.id for job in page]
    assert seen == ["job_z", "job_m", "job_q", "job_a", "job_b"]


async def test_nothing_of_a_removed_account_stays(database: Database) -> None:
    """Every table that names accounts is free of the one that was removed, and the other is whole."""
    one, _ = await _account(database, "one")
    two, _ = await _account(database, "two")
    for account in (one, two):
        await idempotency.claim(database, account, "key", "digest")
        async with database.begin() as connection:
            await records.add(connection, _record(account, "mine"))
            await endpoints.add(connection, _endpoint(account))
            conversation = Conversation(
                id=new_id("cnv"), account=account, agent="agt_1", created_at=datetime.now(UTC)
            )
            await conversations.insert_conversation(connection, conversation)
            await outbox.create_stream(
                connection, conversation=conversation.id, account=account, agent="agt_1"
            )
            said = Event.now(EventType.MESSAGE_RECEIVED, conversation.id, {"text": "hi"})
            await outbox.record(connection, {conversation.id: [said]})
    async with database.begin() as connection:
        assert await deletion.delete_account(connection, one)
    purges = {"erasures"}  # the purge of its events, which remains until it is done
    owned = [table for table in metadata.sorted_tables if "account" in table.c and table.name not in purges]
    async with database.read() as connection:
        for table in owned:
            gone = select(func.count()).select_from(table).where(table.c.account == one)
            assert (await connection.execute(gone)).scalar_one() == 0, table.name
        kept = await records.list_by_kind(connection, two, "workspace")
    assert len(kept) == 1


async def test_an_event_of_a_platform_is_new_once(database: Database) -> None:
    """The first of twenty simultaneous repetitions is remembered as new, the others are known."""

    async def remember() -> bool:
        async with database.begin() as connection:
            return await conversations.record_event(
                connection, account="acc", source="telegram", event_key="7:1", message="msg_1", turn=None
            )

    assert sum(await asyncio.gather(*(remember() for _ in range(20)))) == 1
    assert not await remember()
