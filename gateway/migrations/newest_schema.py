"""The newest schema of SQLite as one file, for databases that are empty.

A first start would otherwise import Alembic and apply every revision, which takes a third of its time. The
file is what the revisions lead to: `python -m gateway.migrations.write schema` writes it after a new
revision, and a test compares it.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

FILE = Path(__file__).parent / "newest_schema.sql"
_SEPARATOR = ";\n\n"
_CONSTRAINT = "\tCONSTRAINT "
_STATEMENTS = (
    "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
    "AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow') ORDER BY type = 'index', name"
)
"""Without the tables that SQLite and its full-text search create by themselves."""


def is_empty(connection: Connection) -> bool:
    """Return whether this is a SQLite database without a table."""
    if connection.dialect.name != "sqlite":
        return False
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first() is None


def create(connection: Connection, revision: str) -> None:
    """Create the tables and indexes of an empty SQLite database, which then has this revision."""
    for statement in FILE.read_text("utf-8").split(_SEPARATOR):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("INSERT INTO alembic_version (version_num) VALUES (?)", (revision,))


def describe(connection: Connection) -> str:
    """Return the contents of the file for a SQLite database to which all revisions were applied."""
    statements = [_sort_constraints(row[0]) for row in connection.exec_driver_sql(_STATEMENTS)]
    lines = _SEPARATOR.join(statements).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _sort_constraints(statement: str) -> str:
    """Return a statement whose constraints have an order: Alembic's, when it copies a table, is by chance."""
    lines = statement.splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith(_CONSTRAINT)]
    found = sorted(lines[place].rstrip().removesuffix(",") for place in places)
    for place, line in zip(places, found, strict=True):
        lines[place] = line if place == places[-1] else f"{line},"
    return "\n".join(lines)
