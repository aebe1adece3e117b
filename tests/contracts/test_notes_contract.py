"""What an adapter notes is there after a restart, in every database; what it emptied is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from delivery.database import Database
from gateway.notes import ChannelNotes
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
