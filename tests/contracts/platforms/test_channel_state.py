"""An adapter's state survives a restart, in every database; deleted state stays deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from channels.port import RECENT_PREFIX
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault, open_vault
from gateway.ingress.channel_state import SqlChannelSecrets, SqlChannelState
from gateway.records.records import Records
from gateway.store.accounts import deletion
from gateway.store.channel_tables import channel_notes, channel_secrets
from gateway.store.conversations import channel_secrets as store
from gateway.store.conversations.channel_state import delete_recent_before
from gateway.store.tables import accounts, records


@pytest.fixture
async def database(database: Database) -> Database:
    """A database with two channels of one account."""
    now = datetime.now(UTC)
    async with database.begin() as connection:
        await connection.execute(insert(accounts).values(id="acc_1", name="owner", created_at=now))
        for channel in ("chn_1", "chn_2"):
            await connection.execute(
                insert(records).values(
                    id=channel,
                    account="acc_1",
                    kind="channel",
                    name=channel,
                    config={},
                    secrets={},
                    created_at=now,
                    updated_at=now,
                )
            )
    return database


async def test_notes_are_kept_for_each_channel(database: Database) -> None:
    """A later value replaces an earlier one; another channel sees neither."""
    notes = SqlChannelState(database, "chn_1")
    await notes.set({"seen:1": "a", "seen:2": "b"})
    await notes.set({"seen:1": "c"})
    again = SqlChannelState(database, "chn_1")
    assert (await again.get("seen:1"), await again.get("seen:3")) == ("c", None)
    assert await SqlChannelState(database, "chn_2").list() == {}


async def test_notes_are_found_by_how_their_names_begin(database: Database) -> None:
    """SQL wildcards in a name are ordinary characters."""
    notes = SqlChannelState(database, "chn_1")
    await notes.set({"a_b:1": "1", "axb:1": "2", "a%:1": "3", "a": "4"})
    assert await notes.list("a_") == {"a_b:1": "1"}
    assert await notes.list("a%") == {"a%:1": "3"}
    assert len(await notes.list()) == 4


async def test_an_emptied_value_is_deleted_after_a_day(database: Database) -> None:
    """Emptied notes do not pile up; what has content stays, and so does what was emptied just now."""
    notes = SqlChannelState(database, "chn_1")
    await notes.set({"album:1": "", "place": "here"})
    old = datetime.now(UTC) - timedelta(days=2)
    async with database.begin() as connection:
        await connection.execute(update(channel_notes).values(updated_at=old))
    await notes.set({"album:2": ""})
    assert await notes.list() == {"album:2": "", "place": "here"}


async def test_a_temporary_value_is_deleted(database: Database) -> None:
    """A recent note goes with its time; one of any other name stays, however old."""
    notes = SqlChannelState(database, "chn_1")
    await notes.set({f"{RECENT_PREFIX}upload:1": "F1", "place": "here"})
    async with database.begin() as connection:
        await delete_recent_before(connection, before=datetime.now(UTC) - timedelta(days=1))
    assert len(await notes.list()) == 2
    async with database.begin() as connection:
        await delete_recent_before(connection, before=datetime.now(UTC) + timedelta(days=1))
    assert await notes.list() == {"place": "here"}


async def test_notes_end_with_their_channel(database: Database, tmp_path: Path) -> None:
    """Neither a removed channel nor a removed account leaves what its adapter noted."""
    book = Records(open_vault(tmp_path))
    made = {}
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        await book.create(connection, account.id, "agent", name="main", config={})
        for name in ("left", "right"):
            config = {"kind": "telegram", "agent": "main", "settings": {"token": "1:a"}}
            written = await book.create(connection, account.id, "channel", name=name, config=config)
            made[name] = written.record
    left, right = (SqlChannelState(database, made[name].id) for name in ("left", "right"))
    secrets = [SqlChannelSecrets(database, made[name].id, book.vault) for name in ("left", "right")]
    await left.set({"place": "here"})
    await right.set({"place": "there"})
    for one in secrets:
        await one.set("installation:T1", "xoxb-canary")
    async with database.begin() as connection:
        await book.delete(connection, made["left"])
    assert (await left.list(), await right.list()) == ({}, {"place": "there"})
    assert [await one.get("installation:T1") for one in secrets] == [None, "xoxb-canary"]
    async with database.begin() as connection:
        assert await deletion.delete_account(connection, account.id)
    assert (await right.list(), await secrets[1].get("installation:T1")) == ({}, None)


async def test_secrets_are_encrypted_and_taken_once(database: Database, tmp_path: Path) -> None:
    """The table holds no token in clear; of two that take a secret, one gets it."""
    vault: Vault = open_vault(tmp_path)
    secrets = SqlChannelSecrets(database, "chn_1", vault)
    await secrets.set("installation:T1", "xoxb-first")
    await secrets.set("installation:T1", "xoxb-canary")
    async with database.read() as connection:
        (row,) = (await connection.execute(select(channel_secrets))).all()
    assert ("xoxb" in row.sealed, await secrets.get("installation:T1")) == (False, "xoxb-canary")
    assert await SqlChannelSecrets(database, "chn_2", vault).get("installation:T1") is None
    taken = [await secrets.take("installation:T1") for _ in range(2)]
    assert taken == ["xoxb-canary", None]
    await secrets.set("installation:T1", "xoxb-canary")
    await secrets.set("installation:T1", None)
    assert await secrets.get("installation:T1") is None


async def test_secrets_are_listed_by_name(database: Database, tmp_path: Path) -> None:
    """A page holds the names after a cursor, of one channel and one prefix."""
    vault = open_vault(tmp_path)
    secrets = SqlChannelSecrets(database, "chn_1", vault)
    for name in ("installation:T3", "installation:T1", f"{RECENT_PREFIX}state:1", "installation:T2"):
        await secrets.set(name, f"xoxb-{name}")
    await SqlChannelSecrets(database, "chn_2", vault).set("installation:T0", "xoxb-other")
    first = await secrets.list("installation:", limit=2)
    assert first == {f"installation:T{number}": f"xoxb-installation:T{number}" for number in (1, 2)}
    assert list(await secrets.list("installation:", after="installation:T2")) == ["installation:T3"]


async def test_temporary_secrets_do_not_pile_up(database: Database, tmp_path: Path) -> None:
    """An installation that was not finished is forgotten after an hour; a token is not."""
    secrets = SqlChannelSecrets(database, "chn_1", open_vault(tmp_path))
    await secrets.set(f"{RECENT_PREFIX}state:1", "1")
    await secrets.set("installation:T1", "xoxb-canary")
    async with database.begin() as connection:
        old = datetime.now(UTC) - timedelta(hours=2)
        await connection.execute(update(channel_secrets).values(updated_at=old))
    await secrets.set(f"{RECENT_PREFIX}state:2", "2")
    async with database.read() as connection:
        names = await connection.execute(select(channel_secrets.c.name).order_by(channel_secrets.c.name))
        assert list(names.scalars()) == ["installation:T1", f"{RECENT_PREFIX}state:2"]


async def test_anybody_can_cause_a_limited_number_of_temporary_secrets(database: Database) -> None:
    """The oldest are deleted beyond the limit of a channel; tokens and other channels' secrets stay."""
    start = datetime.now(UTC)
    rows = [
        {
            "channel": channel,
            "account": "acc_1",
            "name": name,
            "sealed": "x",
            "updated_at": start + timedelta(milliseconds=number),
        }
        for number in range(store.MAX_RECENT)
        for channel, name in (
            ("chn_1", f"{RECENT_PREFIX}state:{number}"),
            ("chn_2", f"{RECENT_PREFIX}{number}"),
        )
    ]
    kept = {"channel": "chn_1", "account": "acc_1", "name": "token", "sealed": "x"}
    rows.append(kept | {"updated_at": start - timedelta(days=9)})
    async with database.begin() as connection:
        await connection.execute(insert(channel_secrets), rows)
        await store.save(connection, "chn_1", f"{RECENT_PREFIX}state:new", "x")
        found = await connection.execute(select(channel_secrets.c.channel, channel_secrets.c.name))
        names = [(row.channel, row.name) for row in found]
    ours = [name for channel, name in names if channel == "chn_1"]
    assert len(ours) == store.MAX_RECENT + 1
    assert {"token", f"{RECENT_PREFIX}state:new"} <= set(ours)
    assert f"{RECENT_PREFIX}state:0" not in ours
    assert len(names) - len(ours) == store.MAX_RECENT
