"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

Row = Mapping[str, Any]
Column = str | Callable[[Row], object]
Columns = Mapping[str, Column]


def print_json(value: object) -> None:
    """Print a value as JSON on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(rows: Sequence[Row], columns: Columns, *, as_json: bool, empty: str) -> None:
    """Print a list as a table, or the complete items as JSON."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        typer.echo(empty)
    else:
        _print_table(rows, columns)


def _print_table(rows: Sequence[Row], columns: Columns) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(columns):
        table.add_column(title, overflow="fold" if number else "ignore", no_wrap=not number)
    for row in rows:
        table.add_row(*(Text(cell(row, column)) for column in columns.values()))
    console.print(table)


def cell(row: Row, column: Column) -> str:
    """Return a column's value of a row as one printable line."""
    value = column(row) if callable(column) else row.get(column)
    if value is None:
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return clean(text.replace("\n", "⏎ "))


def shows_styles() -> bool:
    """Return whether stdout is a terminal that shows bold text; pipes and dumb terminals are not."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    return not Console().is_dumb_terminal


def clean(text: str) -> str:
    """Remove control characters that move the cursor or change colours; output is untrusted."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in text)


def print_record(record: Row, *, as_json: bool) -> None:
    """Print one item as a name and value per line, or as JSON."""
    if as_json:
        print_json(record)
        return
    width = max((len(str(name)) for name in record), default=0)
    for name, value in record.items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        typer.echo(f"{name:<{width}}  {clean('' if shown is None else str(shown))}")


def short(text: object, length: int = 60) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
