"""`dovecote migrate copy`: a gateway goes on with PostgreSQL where it was with SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import JSON, Text, cast, literal, select

from command_line import run_command_line
from databases import postgres
from delivery.database.engine import Database, metadata
from gateway.config.load import environment_without_ours
from gateway.migrations import migrate_up
from gateway_process import gateway
from postgres import PostgresCluster
from turn_requests import ALLOWED, is_finished, item_states, poll_until, start_turn
from webhook_receiver import respond, webhook_receiver

__all__ = ["postgres"]


@pytest.fixture
def target(postgres: PostgresCluster) -> str:
    """The URL of an empty database."""
    return postgres.create_database()


async def copy(data: Path, target: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it printed."""
    env = environment_without_ours() | {"DOVECOTE_DATA_DIR": str(data), "DOVECOTE_DATABASE_URL": target}
    done = await asyncio.to_thread(run_command_line, "migrate", "copy", env=env)
    return done.exit_code, done.output


async def all_rows(url: str) -> dict[str, dict[Any, Any]]:
    """Return the rows of every table by their keys, JSON as text."""
    database, found = Database(url), {}
    async with database.read() as connection:
        for table in metadata.sorted_tables:
            columns = [cast(one, Text) if isinstance(one.type, JSON) else one for one in table.c]
            places = [list(table.c).index(one) for one in table.primary_key]
            rows = list(await connection.execute(select(*columns)))
            found[table.name] = {tuple(row[place] for place in places): tuple(row) for row in rows}
    await database.close()
    return found


def sqlite_url(file: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite+aiosqlite:///{file}"


def prepare(data: Path, *statements: str) -> None:
    """Make a data directory with a SQLite file of this version, and execute statements on it."""
    data.mkdir(mode=0o700)
    asyncio.run(migrate_up(sqlite_url(data / "dovecote.db")))
    with closing(sqlite3.connect(data / "dovecote.db")) as file, file:
        for statement in statements:
            file.execute(statement)


async def test_a_gateway_goes_on_with_postgresql(tmp_path: Path, target: str) -> None:
    """Every row is there; the queued turn runs, the webhook has its old id, and new rows are accepted."""
    data, elsewhere = tmp_path / "data", ALLOWED | {"DOVECOTE_DATABASE_URL": target}
    async with webhook_receiver(*[respond(503)] * 100) as receiver, gateway(data, env=ALLOWED) as process:
        owed = await start_turn(process, "!echo owed", webhook={"url": receiver.url}, conversation="one")
        await poll_until(process, "/deliveries", lambda found: "retrying" in item_states(found))
        code, said = await copy(data, target)
        assert (code, "stop it" in said) == (2, True), said
        await process.stop()
        await process.start(env={"DOVECOTE_ROLES": "ingress"})
        queued = await start_turn(process, "!echo queued", conversation="queued")
        await process.stop()

        code, said = await copy(data, target)
        assert code == 0, said
        assert not (data / "dovecote.db").exists()
        before = await all_rows(sqlite_url(data / "dovecote.db.copied"))
        assert len(before["turns"]) == 2
        assert await all_rows(target) == before

        refused = receiver.requests[-1].headers["webhook-id"]
        receiver.script.clear()
        await process.start(env=elsewhere)
        done = await poll_until(process, f"/status/{queued['turnId']}", is_finished)
        assert (done["state"], "queued" in done["output"]) == ("completed", True)
        await poll_until(process, "/deliveries", lambda found: item_states(found) == {"delivered"})
        assert receiver.requests[-1].headers["webhook-id"] == refused
        again = await start_turn(process, "!echo again", conversation="one")
        assert again["conversationId"] == owed["conversationId"]
        await poll_until(process, f"/status/{again['turnId']}", is_finished)


NOW = "2026-01-01 00:00:00.000000"
ACCOUNT = f"INSERT INTO accounts (id, name, created_at) VALUES ('{{0}}', '{{0}}', '{NOW}')"
PERSON = (
    "INSERT INTO persons (id, account, subject, created_at, budget) "
    f"VALUES ('{{0}}', 'a', '{{0}}', '{NOW}', {{1}})"
)
AUDIT = f"INSERT INTO audit VALUES ({{0}}, 'x{{0}}', 'a', 'key', 'create', 'agents/x', 201, '::1', '{NOW}')"


async def test_a_row_that_postgresql_does_not_accept_is_named(tmp_path: Path, target: str) -> None:
    """SQLite does not limit texts. Nothing is copied then, and a second attempt is possible."""
    data = tmp_path / "data"
    await asyncio.to_thread(prepare, data, ACCOUNT.format("fits"), ACCOUNT.format("x" * 41))
    code, said = await copy(data, target)
    assert code == 1
    assert f"the row id = {'x' * 41} of the table accounts is not accepted" in said
    assert await all_rows(target) == {table.name: {} for table in metadata.sorted_tables}
    with closing(sqlite3.connect(data / "dovecote.db")) as file, file:
        file.execute("DELETE FROM accounts WHERE length(id) > 40")
    assert await copy(data, target) == (0, ANY)
    assert len((await all_rows(target))["accounts"]) == 1


async def test_a_database_with_rows_is_not_added_to(tmp_path: Path, target: str) -> None:
    """Also one that an earlier copy has filled."""
    for name in ("first", "second"):
        await asyncio.to_thread(prepare, tmp_path / name, ACCOUNT.format(name))
    assert (await copy(tmp_path / "first", target))[0] == 0
    code, said = await copy(tmp_path / "second", target)
    assert (code, "has data already (in the table accounts)" in said) == (1, True), said
    assert (tmp_path / "second" / "dovecote.db").exists()


async def test_values_stay_what_they_are_and_numbers_go_on(tmp_path: Path, target: str) -> None:
    """A missing value is no JSON null; the numbers of new rows begin after those of the copied ones."""
    people = (PERSON.format("none", "NULL"), PERSON.format("null", "'null'"))
    await asyncio.to_thread(prepare, tmp_path / "data", ACCOUNT.format("a"), *people, AUDIT.format(41))
    assert (await copy(tmp_path / "data", target))[0] == 0
    assert await all_rows(target) == await all_rows(sqlite_url(tmp_path / "data" / "dovecote.db.copied"))
    database, audit = Database(target), metadata.tables["audit"]
    async with database.begin() as connection:
        names = [one.name for one in audit.c if one.name != "position"]
        again = select(*(literal("new") if name == "id" else audit.c[name] for name in names))
        await connection.execute(audit.insert().from_select(names, again))
        assert list(await connection.scalars(select(audit.c.position).order_by("position"))) == [41, 42]
    await database.close()


@pytest.mark.parametrize(
    ("database_url", "problem"),
    [(None, "set database_url"), ("sqlite+aiosqlite:///elsewhere.db", "names a SQLite file")],
)
async def test_only_postgresql_is_copied_to(tmp_path: Path, database_url: str | None, problem: str) -> None:
    """The error names the setting."""
    await asyncio.to_thread(prepare, tmp_path / "data")
    env = environment_without_ours() | {"DOVECOTE_DATA_DIR": str(tmp_path / "data")}
    more = {"DOVECOTE_DATABASE_URL": database_url} if database_url else {}
    done = await asyncio.to_thread(run_command_line, "migrate", "copy", env=env | more)
    assert (done.exit_code, problem in done.output) == (2, True), done.output
