"""`dovecote logs`: print the log of the gateway of a data directory, also of one that has stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from gateway.cli.errors import CommandFailed, UsageError
from gateway.cli.group import ClientConfig, Data, Json, load_client_settings
from gateway.cli.output import shows_styles, to_json
from gateway.cli.printable import clean
from gateway.cli.stdout_reader import stdout_is_read

LEVELS = ("debug", "info", "warning", "error", "critical")
COLOURS = {"debug": "bright_black", "warning": "yellow", "error": "red", "critical": "red"}
FOLLOW_SECONDS = 0.3
_KNOWN = ("timestamp", "level", "logger", "event", "exception")


def logs(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they come.")] = False,
    level: Annotated[str, typer.Option(help="The lowest level: debug, info, warning or error.")] = "debug",
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines to begin with.")] = 100,
    data: Data = None,
    config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Print the last lines of the gateway's log in its data directory, also after it has stopped.

    With `--json` a line is a JSON object.
    """
    from gateway.observability.log_file import log_path

    if level not in LEVELS:
        raise UsageError(f"--level {level} is unknown: use {', '.join(LEVELS[:-1])}")
    file = log_path(load_client_settings(config, data_dir=data).data_dir)
    wanted = LEVELS[LEVELS.index(level) :]
    try:
        _print_log(LogReader(file), wanted, lines=lines, follow=follow, as_json=as_json)
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no log at {file}: start the gateway, name its data directory with --data, or look "
            "where its output goes if log_file_mb is 0"
        ) from None
    except BrokenPipeError:  # of the output, which a reader such as head has closed
        raise
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error


def _print_log(
    reader: LogReader, wanted: tuple[str, ...], *, lines: int, follow: bool, as_json: bool
) -> None:
    """Print the last lines, and with `follow` new ones for ever; raises FileNotFoundError without a log."""
    kept = chain(reader.older_lines(), reader.new_lines())
    for line in deque(_at_level(kept, wanted), maxlen=lines):
        _print(line, as_json=as_json)
    if not follow and not reader.is_open:
        raise FileNotFoundError
    while follow and stdout_is_read():
        for line in _at_level(reader.new_lines(), wanted):
            _print(line, as_json=as_json)
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)


class LogReader:
    """Reads a log file as it grows, and continues with the next one when it is replaced or emptied."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._opened: TextIO | None = None
        self._partial = ""

    def older_lines(self) -> Iterator[str]:
        """Yield the lines of the files that were replaced, the oldest first."""
        for one in sorted(self._file.parent.glob(f"{self._file.name}.[0-9]"), reverse=True):
            with suppress(FileNotFoundError), one.open(encoding="utf-8", errors="replace") as opened:
                yield from opened

    def new_lines(self) -> Iterator[str]:
        """Yield the complete lines that were written since the last call."""
        while self._open():
            is_replaced = self._is_replaced()
            yield from self._rest()
            if not is_replaced:
                return
            self.close()

    @property
    def is_open(self) -> bool:
        """Return whether there is a log."""
        return self._opened is not None

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open(self) -> bool:
        if self._opened is None:
            with suppress(FileNotFoundError):
                self._opened = self._file.open(encoding="utf-8", errors="replace")
        return self._opened is not None

    def _rest(self) -> Iterator[str]:
        for line in self._opened or ():
            self._partial += line
            if line.endswith("\n"):
                yield self._partial
                self._partial = ""

    def _is_replaced(self) -> bool:
        assert self._opened is not None
        ours = os.fstat(self._opened.fileno())
        try:
            is_another = not os.path.samestat(ours, self._file.stat())
        except FileNotFoundError:
            is_another = False
        return is_another or ours.st_size < os.lseek(self._opened.fileno(), 0, os.SEEK_CUR)


def _at_level(lines: Iterable[str], wanted: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("level", "info") in wanted:
            yield found


def _print(line: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(line))
        return
    level, event = str(line.get("level", "")), str(line.get("event", ""))
    rest = " ".join(f"{name}={_shown(value)}" for name, value in line.items() if name not in _KNOWN)
    styled = typer.style(f"{level:<8}", fg=COLOURS.get(level)) if shows_styles() else f"{level:<8}"
    typer.echo(f"{clean(str(line.get('timestamp', ''))[:19])} {styled} {clean(f'{event} {rest}').rstrip()}")
    if line.get("exception"):
        typer.echo(clean(str(line["exception"])))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return json.dumps(text, ensure_ascii=False) if " " in text or "\n" in text else text
