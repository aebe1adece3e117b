"""An adapter's state survives a restart, in every database; deleted state stays deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import update

from channels.port import RECENT_PREFIX
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_state import SqlChannelState
from gateway.records.records import Records
from gateway.store.accounts import deletion
from gateway.store.conversations.channel_state import delete_recent_before
from gateway.store.tables import channel_notes


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


async def test_what_was_emptied_is_forgotten_after_a_day(database: Database) -> None:
    """Emptied notes do not pile up; what has content stays, and so does what was emptied just now."""
    notes = SqlChannelState(database, "chn_1")
    await notes.set({"album:1": "", "place": "here"})
    old = datetime.now(UTC) - timedelta(days=2)
    async with database.begin() as connection:
        await connection.execute(update(channel_notes).values(updated_at=old))
    await notes.set({"album:2": ""})
    assert await notes.list() == {"album:2": "", "place": "here"}


async def test_what_was_to_matter_for_a_while_is_forgotten(database: Database) -> None:
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
    await left.set({"place": "here"})
    await right.set({"place": "there"})
    async with database.begin() as connection:
        await book.delete(connection, made["left"])
    assert (await left.list(), await right.list()) == ({}, {"place": "there"})
    async with database.begin() as connection:
        assert await deletion.delete_account(connection, account.id)
    assert await right.list() == {}
