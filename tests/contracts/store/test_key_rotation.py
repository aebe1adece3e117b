"""M16: a new secret key replaces an old one, on every database, in every encrypted column."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from commands import run_to_end
from delivery.database.engine import Database
from delivery.database.tables import endpoints as endpoint_rows
from delivery.events.event import new_id
from delivery.webhooks import endpoints
from gateway.accounts import api_keys
from gateway.accounts.key_rotation import Reencryption, reencrypt_all
from gateway.accounts.vault import DecryptionFailed, Vault, associated_data
from gateway.ingress.channel_state import SqlChannelSecrets
from gateway.records import webhooks
from gateway.records.records import Records
from gateway.records.rules.endpoint_rules import CallableUrl
from gateway.store.accounts import idempotency, records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations as conversation_store
from gateway.store.conversations import triggers
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.triggers import Trigger
from gateway.store.schedule_tables import triggers as trigger_rows
from gateway.store.tables import jobs as job_rows
from gateway.store.tables import records as record_rows
from gateway.store.tables import replies
from gateway.store.turns import jobs as job_store
from gateway.store.turns.jobs import Job
from migrated import migrated_sqlite

OLD, NEW = "old-" + "o" * 40, "new-" + "n" * 40


async def _fill(database: Database, vault: Vault, many: int) -> tuple[str, str]:
    """Encrypt records, webhooks, a job's token and a stored answer; returns (account, job)."""
    book = Records(vault)
    now = datetime.now(UTC)
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        for number in range(many):
            config = {"envVars": {"TOKEN": f"canary-{number}"}}
            await book.create(connection, account.id, "sandbox", name=f"s{number}", config=config)
        reported = await webhooks.create(
            connection, vault, account.id, url=CallableUrl("https://example.org/"), events=("*",), name="h"
        )
        await endpoints.update_endpoint(
            connection,
            webhooks.with_rotated_secret(vault, reported.endpoint, "whsec_" + "a" * 32),
            before=reported.endpoint,
        )
        conversation = Conversation(id=new_id("cnv"), account=account.id, agent="agt", created_at=now)
        await conversation_store.insert_conversation(connection, conversation)
        job = _job(account.id, conversation.id, vault)
        await job_store.insert_job(connection, job)
    await idempotency.claim(database, account.id, "k", "digest")
    sealed = vault.encrypt(associated_data("replies", account.id, "k"), "told once").encode()
    async with database.begin() as connection:
        await idempotency.save(connection, account.id, "k", status=201, body=sealed)
    return account.id, job.id


def _job(account: str, conversation: str, vault: Vault) -> Job:
    job = new_id("job")
    return Job(
        id=job,
        account=account,
        conversation=conversation,
        turn="trn",
        agent="agt",
        asker="",
        command="true",
        provider="host",
        sandbox="box",
        sandbox_record=None,
        workspace=None,
        token_digest=b"digest",
        token_sealed=vault.encrypt(associated_data("jobs", job, "token"), "job token").encode(),
        created_at=datetime.now(UTC),
    )


async def _add_trigger(database: Database, account: str, vault: Vault) -> str:
    now, trigger = datetime.now(UTC), new_id("trg")
    conversation = Conversation(id=new_id("cnv"), account=account, agent="agt", created_at=now)
    made = Trigger(
        id=trigger,
        account=account,
        conversation=conversation.id,
        template="look",
        sealed=vault.encrypt(associated_data("triggers", trigger, "secret"), "whsec_canary"),
        created_by="key",
        created_at=now,
    )
    async with database.begin() as connection:
        await conversation_store.insert_conversation(connection, conversation)
        await triggers.insert_trigger(connection, made)
    return trigger


async def _add_channel(database: Database, account: str, channel: str) -> None:
    """Store a channel's record without secrets of its own."""
    now = datetime.now(UTC)
    async with database.begin() as connection:
        await records.add(
            connection,
            records.Record(
                id=channel,
                account=account,
                kind="channel",
                name=channel,
                config={},
                created_at=now,
                updated_at=now,
            ),
        )


async def test_after_a_rotation_the_old_key_can_go(database: Database) -> None:
    """Variables, both webhook secrets, job tokens and stored answers decrypt with the new key alone."""
    account, job_id = await _fill(database, Vault([OLD]), 3)
    for channel in ("chn_1", "chn_2"):
        await _add_channel(database, account, channel)
        await SqlChannelSecrets(database, channel, Vault([OLD])).set("installation:T1", channel)
    trigger = await _add_trigger(database, account, Vault([OLD]))
    login = {"username": "ada", "password": "canary"}
    credential = {"host": "example.org", "kind": "basic", "secret": login, "agents": ["*"]}
    async with database.begin() as connection:
        await Records(Vault([OLD])).create(connection, account, "credential", name="c", config=credential)
    assert await reencrypt_all(database, Vault([NEW, OLD])) == Reencryption(renewed=10, unreadable=())
    after = Vault([NEW])
    for channel in ("chn_1", "chn_2"):
        assert await SqlChannelSecrets(database, channel, after).get("installation:T1") == channel
    book = Records(after)
    async with database.read() as connection:
        found = await records.list_by_kind(connection, account, "sandbox")
        tokens = sorted(book.sandbox_config(record).env_vars["TOKEN"] for record in found)
        assert tokens == [f"canary-{number}" for number in range(3)]
        endpoint = await webhooks.get(connection, account, "h")
        job = await job_store.get_by_id(connection, job_id)
        kept = await idempotency.get(connection, account, "k")
        signed = await triggers.get_by_id(connection, trigger)
        stored = await book.get(connection, account, "credential", "c")
    assert book.with_secrets(stored) == credential
    assert signed is not None
    assert after.decrypt(associated_data("triggers", trigger, "secret"), signed.sealed) == "whsec_canary"
    assert len(webhooks.active_secrets(after, endpoint)) == 2
    assert job is not None
    assert after.decrypt(associated_data("jobs", job.id, "token"), job.token_sealed) == "job token"
    assert kept is not None
    assert after.decrypt(associated_data("replies", account, "k"), kept.body or b"") == "told once"


async def test_a_second_rotation_finds_nothing_to_do(database: Database) -> None:
    """What the first key sealed stays as it is."""
    await _fill(database, Vault([OLD]), 1)
    ring = Vault([NEW, OLD])
    await reencrypt_all(database, ring)
    assert (await reencrypt_all(database, ring)).renewed == 0


async def test_a_thousand_rows_are_renewed(database: Database) -> None:
    """More than one batch is renewed to the last row."""
    account, _job_id = await _fill(database, Vault([OLD]), 1)
    async with database.begin() as connection:
        (first,) = await records.list_by_kind(connection, account, "sandbox")
        for number in range(999):
            fresh = new_id("sbx")
            sealed = Vault([OLD]).encrypt(associated_data("records", fresh, "/envVars/TOKEN"), "canary")
            await records.add(
                connection,
                replace(first, id=fresh, name=f"r{number}", encrypted_secrets={"/envVars/TOKEN": sealed}),
            )
    await reencrypt_all(database, Vault([NEW, OLD]))
    book = Records(Vault([NEW]))
    async with database.read() as connection:
        everything = await records.list_by_kind(connection, account, "sandbox", limit=2000)
    assert len(everything) == 1000
    assert all(book.sandbox_config(record).env_vars["TOKEN"].startswith("canary") for record in everything)


async def test_the_command_rotates_the_others_and_lists_what_it_cannot(tmp_path: Path) -> None:
    """A damaged value in each encrypted column stays as it is and is named; the exit code is 1 until then."""
    tmp_path.joinpath("data").mkdir()
    database = Database(await migrated_sqlite(tmp_path / "data" / "dovecote.db"))
    account, job = await _fill(database, Vault([OLD]), 3)
    trigger = await _add_trigger(database, account, Vault([OLD]))
    async with database.begin() as connection:
        (first, *_others) = await records.list_by_kind(connection, account, "sandbox")
        spoilt = {"/envVars/TOKEN": "spoilt"}
        of_first = record_rows.c.id == first.id
        await connection.execute(update(record_rows).where(of_first).values(secrets=spoilt))
        await connection.execute(update(endpoint_rows).values(previous_secret=b"\xff spoilt"))
        await connection.execute(update(job_rows).values(token_sealed=b"\xff spoilt"))
        await connection.execute(update(replies).values(body=b"\xff spoilt"))
        await connection.execute(update(trigger_rows).values(sealed="v1.spoilt"))
    code, done = await _reencrypt(tmp_path)
    assert (code, done["renewed"]) == (1, 3)
    assert {(one["table"], one["row"], one["field"]) for one in done["unreadable"]} == {
        ("records", first.id, "/envVars/TOKEN"),
        ("endpoints", await _only_endpoint(database), "previous_secret"),
        ("jobs", job, "token"),
        ("replies", account, "k"),
        ("triggers", trigger, "secret"),
    }
    async with database.begin() as connection:
        kept = await records.list_by_kind(connection, account, "sandbox")
        assert [one.encrypted_secrets for one in kept if one.id == first.id] == [spoilt]
        for table in (replies, job_rows, endpoint_rows, trigger_rows):
            await connection.execute(table.delete())
        await connection.execute(record_rows.delete().where(of_first))
    book = Records(Vault([NEW]))
    tokens = {book.sandbox_config(one).env_vars["TOKEN"] for one in kept if one.id != first.id}
    assert tokens == {"canary-0", "canary-1", "canary-2"} - {_canary_of(first)}
    await database.close()
    assert await _reencrypt(tmp_path) == (0, {"renewed": 0, "unreadable": [], "left": 0, "replicas": []})


def _canary_of(record: Record) -> str:
    return f"canary-{record.name.removeprefix('s')}"


async def _only_endpoint(database: Database) -> str:
    async with database.read() as connection:
        return str((await connection.execute(select(endpoint_rows.c.id))).scalar_one())


async def _reencrypt(directory: Path) -> tuple[int | None, dict[str, Any]]:
    """Run the command with the new key first; returns its exit code and what it prints."""
    words = ("secrets", "reencrypt", "--data", str(directory / "data"), "--json")
    code, output, errors = await run_to_end(*words, cwd=directory, DOVECOTE_SECRET_KEYS=f"{NEW},{OLD}")
    assert output, errors
    return code, json.loads(output)


async def test_what_no_key_opens_stays_and_stops_nothing(database: Database) -> None:
    """A row whose key is lost is left alone; the others are renewed."""
    account, _job_id = await _fill(database, Vault([OLD]), 1)
    lost = Records(Vault(["lost-" + "l" * 40]))
    async with database.begin() as connection:
        config = {"envVars": {"TOKEN": "gone"}}
        await lost.create(connection, account, "sandbox", name="lost", config=config)
    done = await reencrypt_all(database, Vault([NEW, OLD]))
    assert (done.renewed, [one.field for one in done.unreadable]) == (4, ["/envVars/TOKEN"])
    async with database.read() as connection:
        record = await records.get(connection, account, "sandbox", "lost")
    assert record is not None
    with pytest.raises(DecryptionFailed):
        Records(Vault([NEW, OLD])).with_secrets(record)
    assert lost.sandbox_config(record).env_vars == {"TOKEN": "gone"}
