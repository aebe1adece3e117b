"""Writers who wait for SQLite's one place are committed together, and still each for itself."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from delivery.database.engine import Database, DatabaseUnavailable
from delivery.database.group_commit import MAX_BATCH, SPARE_SECONDS
from delivery.fair_gate import working_for


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Open a file with one table of words."""
    opened = Database(f"sqlite+aiosqlite:///{tmp_path / 'words.db'}")
    async with opened.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE words (word TEXT UNIQUE)")
    yield opened
    await opened.close()


def written(database: Database) -> list[str]:
    """Return what is on the disk, as another process sees it."""
    connection = sqlite3.connect(str(database.url.database))
    try:
        return [row[0] for row in connection.execute("SELECT word FROM words ORDER BY rowid")]
    finally:
        connection.close()


async def write(database: Database, word: str, *, urgent: bool = False) -> list[str]:
    """Write a word; returns what is on the disk when that is over."""
    async with database.begin(urgent=urgent) as connection:
        await connection.exec_driver_sql("INSERT INTO words VALUES (?)", (word,))
    return written(database)


async def test_what_is_over_is_on_the_disk(database: Database) -> None:
    """Each of many writers finds its word on the disk as soon as its block is over."""
    words = [f"word{number}" for number in range(40)]
    seen = await asyncio.gather(*(write(database, word) for word in words))
    assert all(word in found for word, found in zip(words, seen, strict=True))
    assert sorted(written(database)) == sorted(words)


async def test_writers_who_wait_together_are_committed_together(database: Database) -> None:
    """The first of many who wait at once finds the others' words on the disk as well."""
    first, *_ = await asyncio.gather(*(write(database, f"word{number}") for number in range(10)))
    assert len(first) > 1


async def test_a_writer_who_fails_takes_nothing_of_the_others(database: Database) -> None:
    """Of three concurrent writers the one with a duplicate fails, alone, with all its writes."""

    async def fail() -> None:
        async with database.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO words VALUES ('undone')")
            raise LookupError("on purpose")

    ends = await asyncio.gather(
        write(database, "one"), fail(), write(database, "two"), return_exceptions=True
    )
    assert isinstance(ends[1], LookupError)
    assert written(database) == ["one", "two"]


async def test_a_writer_who_gives_up_leaves_the_others(database: Database) -> None:
    """Cancelling a writer at any point neither blocks nor undoes the others."""
    for steps in range(8):
        doomed = asyncio.create_task(write(database, f"doomed{steps}"))
        others = [asyncio.create_task(write(database, f"other{steps}-{place}")) for place in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        doomed.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*others)
            await asyncio.gather(doomed, return_exceptions=True)
    assert len([word for word in written(database) if word.startswith("other")]) == 24


async def test_an_urgent_step_waits_for_no_later_one(database: Database) -> None:
    """An urgent word is on the disk before the words of those who came before it and still wait."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(write(database, f"word{number}")) for number in range(20)]
        urgent = group.create_task(write(database, "urgent", urgent=True))
    assert len(urgent.result()) < len(tasks)


async def test_a_transaction_that_the_database_gives_up_fails_for_all(database: Database) -> None:
    """When SQLite rolls everything back, every writer of that transaction fails; the next one writes."""

    async def give_up() -> None:
        async with database.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO words VALUES ('undone')")
            await connection.exec_driver_sql("INSERT OR ROLLBACK INTO words VALUES ('undone')")

    first, second = await asyncio.gather(write(database, "one"), give_up(), return_exceptions=True)
    assert isinstance(first, DatabaseUnavailable)
    assert isinstance(second, Exception)
    assert await write(database, "two") == ["two"]


async def test_many_writers_of_one_account_delay_another_by_one_batch(database: Database) -> None:
    """Two hundred writers of one account wait; the writer of another is on the disk among the first."""
    with working_for("busy"):
        busy = [asyncio.create_task(write(database, f"busy{number}")) for number in range(200)]
    await asyncio.sleep(0)
    with working_for("quiet"):
        seen = await asyncio.create_task(write(database, "quiet"))
    assert len(seen) <= 2 * MAX_BATCH
    await asyncio.gather(*busy)
    assert len(written(database)) == 201


async def test_a_batch_of_several_accounts_ends_before_all_of_them_have_written(database: Database) -> None:
    """Slow writers of one account wait with one of another, who is on the disk before the last of them.

    A commit that takes as long as all the slow writers leaves the batch open: then they wait again.
    """

    async def write_slowly(word: str) -> None:
        async with database.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO words VALUES (?)", (word,))
            await asyncio.sleep(0.02)

    for trial in range(20):
        with working_for("busy"):
            busy = [asyncio.create_task(write_slowly(f"busy{trial}-{number}")) for number in range(10)]
        await asyncio.sleep(0)
        with working_for("quiet"):
            seen = await asyncio.create_task(write(database, f"quiet{trial}"))
        await asyncio.gather(*busy)
        if sum(f"{trial}-" in word for word in seen) < 5:
            return
    pytest.fail("the writer of another account waited for all the slow ones")


async def test_a_batch_ends_at_once_behind_a_writer_of_another_account(database: Database) -> None:
    """While the disk is mostly idle, no other writer of the first account joins the batch after it."""
    await asyncio.sleep(2 * SPARE_SECONDS)
    with working_for("busy"):
        busy = [asyncio.create_task(write(database, f"busy{number}")) for number in range(10)]
    with working_for("quiet"):
        seen = await asyncio.create_task(write(database, "quiet"))
    await asyncio.gather(*busy)
    assert seen == ["busy0", "quiet"]


@pytest.mark.parametrize("urgent", [False, True])
async def test_a_lone_writer_needs_no_savepoint_and_leaves_nothing_when_it_fails(
    database: Database, *, urgent: bool
) -> None:
    """Its whole transaction is rolled back, and the next writer begins a new one."""
    executed: list[str] = []
    with suppress(RuntimeError):
        async with database.begin(urgent=urgent) as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            driver._conn.set_trace_callback(executed.append)
            await connection.exec_driver_sql("INSERT INTO words VALUES ('lost')")
            raise RuntimeError
    assert await write(database, "kept", urgent=urgent) == ["kept"]
    assert written(database) == ["kept"]
    assert not any("SAVEPOINT" in statement for statement in executed)
