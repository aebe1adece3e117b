"""Lists of turns without their texts, on every database."""

from __future__ import annotations

from pathlib import Path

from delivery.database.engine import Database
from gateway.store.turns import turn_list, turn_queue
from turn_worker import open_turn_worker


async def test_the_newest_turns_of_an_account_are_listed(database: Database, tmp_path: Path) -> None:
    """A merged turn has the state of the one that answers it; others of the account can be left out."""
    harness = await open_turn_worker(database, tmp_path)
    first, second = await harness.add_turn("one"), await harness.add_turn("two")
    merged = await harness.add_turn("and three")
    async with database.begin() as connection:
        assert await turn_queue.merge(connection, merged, second, place=0, text="and three")
        account, talk = first.account, first.conversation
        listed = await turn_list.list_newest(connection, account, conversation=None, limit=9)
        assert [(one.id, one.state) for one in listed] == [
            (merged.id, "queued"),
            (second.id, "queued"),
            (first.id, "queued"),
        ]
        assert listed == await turn_list.list_newest(connection, account, conversation=talk, limit=9)
        assert len(await turn_list.list_newest(connection, account, conversation=None, limit=2)) == 2
        assert await turn_list.list_newest(connection, account, conversation="", limit=9) == []
        assert await turn_list.list_newest(connection, "acc_other", conversation=None, limit=9) == []
