"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from gateway.cli.printable import clean

Row = Mapping[str, Any]
Column = str | Callable[[Row], object]
Columns = Mapping[str, Column]

UNLIMITED = 200
"""Columns of a table that is not printed to a terminal."""
WHOLE = 20
"""Cells of at most this length are not divided; a column in which all are empty is not shown."""
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_STATES = {
    "green": ("completed", "delivered", "ready", "active", "receiving", "approved", "ok", "valid"),
    "yellow": (
        "waiting",
        "retrying",
        "parked",
        "ambiguous",
        "pending",
        "paused",
        "stalled",
        "standby",
        "queued",
    ),
    "red": ("failed", "dead", "lost", "denied", "trouble", "not ready"),
    "cyan": ("running", "sending", "open"),
}


def print_line(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a text without control characters: names in it were typed or sent by others."""
    typer.echo(clean(text), nl=nl, err=err)


def print_json(value: object) -> None:
    """Print a value as JSON on stdout."""
    typer.echo(to_json(value, indent=2))


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON, in which characters that a terminal would obey are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


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

    from gateway.config.load import environment

    is_sized = sys.stdout.isatty() or bool(environment("COLUMNS"))
    console = Console(width=None if is_sized else UNLIMITED)
    table = Table(box=None, pad_edge=False, header_style="bold")
    cells = {title: [cell(row, column) for row in rows] for title, column in columns.items()}
    shown = {title: texts for number, (title, texts) in enumerate(cells.items()) if any(texts) or not number}
    for number, (title, texts) in enumerate(shown.items()):
        width = max(len(title), *map(len, texts))
        is_whole = not number or width <= WHOLE
        table.add_column(
            title, overflow="fold", no_wrap=is_whole, min_width=width if is_whole else WHOLE // 2
        )
    for place in range(len(rows)):
        line = {title: texts[place] for title, texts in shown.items()}
        table.add_row(*(Text(text, style=_style(title, text)) for title, text in line.items()))
    console.print(table)


def _style(title: str, text: str) -> str:
    return state_style(text) if title == "state" else ""


def cell(row: Row, column: Column) -> str:
    """Return a column's value of a row as one printable line; a time is shown as its distance from now."""
    value = column(row) if callable(column) else row.get(column)
    if value is None:
        return ""
    if isinstance(column, str) and (column.endswith("_at") or column == "time"):
        return clean(relative_time(str(value), datetime.now(UTC)))
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return clean(text.replace("\n", "⏎ "))


def relative_time(text: str, now: datetime) -> str:
    """Return how long ago an RFC 3339 time was, or how far ahead it is; other texts as they are."""
    try:
        moment = datetime.fromisoformat(text)
        seconds = (now - moment).total_seconds()
    except (ValueError, TypeError):
        return text
    amount = _amount(abs(seconds))
    if amount is None:
        return "now"
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


def _amount(seconds: float) -> str | None:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return None


def state_style(state: str) -> str:
    """Return the colour of a state."""
    return next((style for style, states in _STATES.items() if state in states), "")


def styled_state(state: str) -> str:
    """Return a state in its colour, if stdout shows colours."""
    style = state_style(state)
    return typer.style(clean(state), fg=style) if style and shows_styles() else clean(state)


def shows_styles() -> bool:
    """Return whether stdout shows colours: pipes, dumb terminals and those with NO_COLOR do not."""
    from gateway.config.load import environment

    return sys.stdout.isatty() and not environment("NO_COLOR") and not is_dumb_terminal()


def is_dumb_terminal() -> bool:
    """Return whether the terminal cannot move its cursor or change colours."""
    from rich.console import Console

    return Console().is_dumb_terminal


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
