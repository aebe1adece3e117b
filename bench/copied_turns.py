"""Copies of a conversation with one finished turn: fill the SQLite database of a stopped gateway with them.

The rows of the conversation are copied with new ids: its turn, messages, history, route, deliveries, usage
and position in the stream. Events are not copied: published ones are deleted within hours.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

AT_ONCE = 20_000
CHAT = 1
"""The Telegram chat of the conversation that is copied; each copy is of another chat."""

_ID = re.compile(r"\b(?:cnv|trn|msg|evt|dlv|rte)_[0-9a-z]{26}")
_CHAT = f'"{CHAT}"'
_FIRST_CHAT = 10_000_000

Row = tuple[object, ...]


def copy_turns(database: Path, count: int) -> int:
    """Copy the conversation with the fewest turns so many times; returns the number of turns afterwards."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -500000"
        )
        (conversation,) = connection.execute(
            "SELECT conversation FROM turns GROUP BY conversation ORDER BY count(*)"
        ).fetchone()
        templates = dict(_rows_of(connection, conversation))
        for first in range(0, count, AT_ONCE):
            with connection:
                for name, (columns, rows) in templates.items():
                    places = ", ".join("?" * len(columns))
                    statement = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({places})"
                    copies = _copies(rows, range(first, min(first + AT_ONCE, count)))
                    connection.executemany(statement, copies)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (turns,) = connection.execute("SELECT count(*) FROM turns").fetchone()
    _write_to_disk(database)
    return int(turns)


def _write_to_disk(database: Path) -> None:
    """Wait until the kernel has written the copies: otherwise the next commit of a gateway writes them all.

    `synchronous = OFF` leaves gigabytes to the kernel, and they count as CPU of whoever calls fsync first.
    """
    with database.open("rb+") as file:
        os.fsync(file.fileno())


def _rows_of(
    connection: sqlite3.Connection, conversation: str
) -> Iterator[tuple[str, tuple[list[str], list[Row]]]]:
    """Yield each table with the columns to copy and the rows of a conversation, parents first."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables.sort(key=lambda name: name != "conversations")
    for name in tables:
        every = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        key = "id" if name == "conversations" else "conversation"
        if name == "outbox" or key not in every:
            continue
        columns = [column for column in every if column != "position"]  # numbered by the database
        rows = connection.execute(
            f"SELECT {', '.join(columns)} FROM {name} WHERE {key} = ?",
            [conversation],
        ).fetchall()
        yield name, (columns, rows)


def _copies(rows: list[Row], numbers: range) -> Iterator[Row]:
    for number in numbers:
        rename = _renamer(number)
        for row in rows:
            yield tuple(rename(value) for value in row)


def _renamer(number: int) -> Callable[[object], object]:
    suffix, chat = f"{number:08d}", f'"{_FIRST_CHAT + number}"'

    def rename(value: object) -> object:
        if isinstance(value, str):
            return _ID.sub(lambda found: found[0][:-8] + suffix, value).replace(_CHAT, chat)
        return value

    return rename
