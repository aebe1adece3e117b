"""Constant statements give the same results on the short way to SQLite as through SQLAlchemy."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError

from delivery.database import direct_execution
from delivery.database.direct_result import DirectResult
from delivery.database.engine import Connection, Database
from delivery.database.tables import UtcDateTime

THINGS = Table(
    "things",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", String(40), unique=True, nullable=False),
    Column("on", Boolean, nullable=False),
    Column("body", LargeBinary),
    Column("at", UtcDateTime),
)
INSERT = insert(THINGS)
BY_NAME = select(THINGS).where(THINGS.c.name == bindparam("of"))
RENAME = update(THINGS).where(THINGS.c.name == bindparam("of")).values(name=bindparam("to"))
RENAME_AND_TELL = RENAME.returning(THINGS.c.id, THINGS.c.at)
COUNT = select(func.count()).select_from(THINGS)
REMOVE = delete(THINGS).where(THINGS.c.name == bindparam("of"))
NAMED_ONE_OF = select(THINGS.c.name).where(THINGS.c.name.in_(bindparam("names", expanding=True)))
WORDS = text("SELECT name FROM things WHERE name NOT IN (:names)")
NOON = datetime(2026, 11, 23, 13, 0, tzinfo=timezone(timedelta(hours=1)))


def thing(name: str, **values: Any) -> dict[str, Any]:
    """Return a row."""
    return {"name": name, "on": True, "body": b"\x00", "at": NOON, **values}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Return a database with the table."""
    opened = Database(f"sqlite+aiosqlite:///{tmp_path / 'one.db'}")
    async with opened.begin() as connection:
        await connection.run_sync(THINGS.metadata.create_all)
    yield opened
    await opened.close()


async def execute(connection: Connection, *arguments: Any, direct: bool) -> Any:
    """Execute a statement for the second time, when it takes the short way, or for the first."""
    found = await connection.execute(*arguments)
    assert isinstance(found, DirectResult) is direct
    return found


@pytest.fixture
async def known(database: Database) -> Database:
    """Return a database for which every statement has been executed before, with a row `a`."""
    async with database.begin() as connection:
        for number in range(2):
            await connection.execute(INSERT, thing(f"{number}"))
            await connection.execute(INSERT, [thing(f"{number} of many")])
            await connection.execute(BY_NAME, {"of": f"{number}"})
            await connection.execute(REMOVE, {"of": f"{number}"})
            for change in (RENAME, RENAME_AND_TELL):
                await connection.execute(change, {"of": "nothing", "to": "else"})
            await connection.execute(REMOVE, {"of": f"{number} of many"})
            await connection.execute(COUNT)
        await connection.execute(INSERT, thing("a"))
    return database


async def test_values_are_converted_both_ways(known: Database) -> None:
    """Booleans, bytes, None and times with their zone, by the types of the columns."""
    async with known.begin() as connection:
        await execute(connection, INSERT, thing("b", on=False, body=None, at=None), direct=True)
        rows = [(await execute(connection, BY_NAME, {"of": of}, direct=True)).one() for of in "ab"]
    assert [(row.name, row.on, row.body, row.at) for row in rows] == [
        ("a", True, b"\x00", NOON.astimezone(UTC)),
        ("b", False, None, None),
    ]
    assert dict(rows[0]._mapping)["on"] is True


async def test_results_have_the_methods_of_sqlalchemy(known: Database) -> None:
    """What the store functions use of them."""
    async with known.read() as connection:
        assert (await execute(connection, COUNT, direct=True)).scalar_one() == 1
        assert (await execute(connection, BY_NAME, {"of": "x"}, direct=True)).one_or_none() is None
        assert (await execute(connection, BY_NAME, {"of": "x"}, direct=True)).first() is None
        assert (await execute(connection, BY_NAME, {"of": "a"}, direct=True)).scalars().all() == [1]
        (row,) = (await execute(connection, BY_NAME, {"of": "a"}, direct=True)).mappings()
        assert row["name"] == "a"


async def test_changes_are_counted_and_reported(known: Database) -> None:
    """`rowcount`, RETURNING, and many rows in one call."""
    async with known.begin() as connection:
        many = await execute(connection, INSERT, [thing("b"), thing("c")], direct=True)
        assert many.rowcount == 2
        changed = await execute(connection, RENAME, {"of": "b", "to": "d"}, direct=True)
        missed = await execute(connection, RENAME, {"of": "b", "to": "d"}, direct=True)
        assert (changed.rowcount, missed.rowcount) == (1, 0)
        reported = await execute(connection, RENAME_AND_TELL, {"of": "d", "to": "e"}, direct=True)
        assert tuple(reported.one()) == (2, NOON.astimezone(UTC))


async def test_errors_are_those_of_sqlalchemy_without_the_values(known: Database) -> None:
    """The transaction of the writer is rolled back as after any error."""

    async def write_twice() -> None:
        async with known.begin() as connection:
            await execute(connection, INSERT, thing("secret"), direct=True)
            await connection.execute(INSERT, thing("secret"))

    with pytest.raises(IntegrityError) as caught:
        await write_twice()
    assert "secret" not in str(caught.value)
    async with known.read() as connection:
        assert (await connection.execute(COUNT)).scalar_one() == 1


@pytest.mark.parametrize(("statement", "names"), [(NAMED_ONE_OF, ["a", "z"]), (WORDS, "z")])
async def test_other_statements_take_the_usual_way(known: Database, statement: Any, names: object) -> None:
    """However often they are executed: a list of values, and plain text."""
    async with known.read() as connection:
        for _ in range(3):
            found = await execute(connection, statement, {"names": names}, direct=False)
            assert found.scalars().all() == ["a"]


async def test_a_statement_of_one_call_is_not_compiled_for_others(known: Database) -> None:
    """Each call builds another object."""
    async with known.read() as connection:
        for _ in range(3):
            await execute(connection, select(THINGS.c.name), direct=False)


async def test_what_a_reader_writes_is_not_seen_by_the_next(known: Database) -> None:
    """A connection that is used again has no open transaction."""
    for _ in range(3):
        async with known.read() as connection:
            await connection.execute(select(THINGS.c.name))
            assert connection.in_transaction()
        async with known.read() as connection:
            assert not connection.in_transaction()


async def test_a_connection_is_not_used_again_after_an_error(known: Database) -> None:
    """Its state is unknown."""
    with pytest.raises(RuntimeError):
        async with known.read() as broken:
            raise RuntimeError
    assert broken.closed
    async with known.read() as connection:
        assert connection is not broken


async def test_constants_of_a_statement_are_part_of_its_text(known: Database) -> None:
    """SQLite would prepare a statement again if a parameter could decide about a partial index."""
    query = select(THINGS.c.id).where(THINGS.c.name == "it's", THINGS.c.id == bindparam("of"))
    async with known.read() as connection:
        await connection.execute(query, {"of": 1})
        assert (await execute(connection, query, {"of": 1}, direct=True)).all() == []
        plan = direct_execution._PLANS.get(query, {"of": 1}, connection)
    assert plan is not None
    assert "name = 'it''s'" in plan.text
    assert plan.text.count("?") == 1


async def test_plans_go_with_their_statements(known: Database) -> None:
    """A statement that is built for one call leaves nothing behind."""
    before = len(direct_execution._PLANS._plans)
    async with known.read() as connection:
        for number in range(20):
            await connection.execute(select(THINGS.c.id).where(THINGS.c.id == number))
    gc.collect()
    assert len(direct_execution._PLANS._plans) <= before + 1
