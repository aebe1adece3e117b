"""What an adapter notes is there after a restart, in every database; what it emptied is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import update

from channels.port import RECENT
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_state import ChannelNotes
from gateway.records.records import Book
from gateway.store.accounts import deletion
from gateway.store.conversations.channel_state import forget_recent
from gateway.store.tables import channel_notes


async def test_notes_are_kept_for_each_channel(database: Database) -> None:
    """A later note takes the place of an earlier one; another channel sees neither."""
    notes = ChannelNotes(database, "chn_1")
    await notes.put({"seen:1": "a", "seen:2": "b"})
    await notes.put({"seen:1": "c"})
    again = ChannelNotes(database, "chn_1")
    assert (await again.get("seen:1"), await again.get("seen:3")) == ("c", None)
    assert await ChannelNotes(database, "chn_2").all() == {}


async def test_notes_are_found_by_how_their_names_begin(database: Database) -> None:
    """What stands for anything in SQL stands for itself in a name."""
    notes = ChannelNotes(database, "chn_1")
    await notes.put({"a_b:1": "1", "axb:1": "2", "a%:1": "3", "a": "4"})
    assert await notes.all("a_") == {"a_b:1": "1"}
    assert await notes.all("a%") == {"a%:1": "3"}
    assert len(await notes.all()) == 4


async def test_what_was_emptied_is_forgotten_after_a_day(database: Database) -> None:
    """Emptied notes do not pile up; what has content stays, and so does what was emptied just now."""
    notes = ChannelNotes(database, "chn_1")
    await notes.put({"album:1": "", "place": "here"})
    old = datetime.now(UTC) - timedelta(days=2)
    async with database.begin() as connection:
        await connection.execute(update(channel_notes).values(updated_at=old))
    await notes.put({"album:2": ""})
    assert await notes.all() == {"album:2": "", "place": "here"}


async def test_what_was_to_matter_for_a_while_is_forgotten(database: Database) -> None:
    """A recent note goes with its time; one of any other name stays, however old."""
    notes = ChannelNotes(database, "chn_1")
    await notes.put({f"{RECENT}upload:1": "F1", "place": "here"})
    async with database.begin() as connection:
        await forget_recent(connection, before=datetime.now(UTC) - timedelta(days=1))
    assert len(await notes.all()) == 2
    async with database.begin() as connection:
        await forget_recent(connection, before=datetime.now(UTC) + timedelta(days=1))
    assert await notes.all() == {"place": "here"}


async def test_notes_end_with_their_channel(database: Database, tmp_path: Path) -> None:
    """Neither a removed channel nor a removed account leaves what its adapter noted."""
    book = Book(open_vault(tmp_path))
    made = {}
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        await book.create(connection, account.id, "agent", name="main", config={})
        for name in ("left", "right"):
            config = {"kind": "telegram", "agent": "main", "settings": {"token": "1:a"}}
            written = await book.create(connection, account.id, "channel", name=name, config=config)
            made[name] = written.record
    left, right = (ChannelNotes(database, made[name].id) for name in ("left", "right"))
    await left.put({"place": "here"})
    await right.put({"place": "there"})
    async with database.begin() as connection:
        await book.remove(connection, made["left"])
    assert (await left.all(), await right.all()) == ({}, {"place": "there"})
    async with database.begin() as connection:
        assert await deletion.remove_account(connection, account.id)
    assert await right.all() == {}
