"""`dovecote logs`: print the log of the gateway of a data directory, also of one that has stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
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
    for line in deque(_at_level(reader.new_lines(), wanted), maxlen=lines):
        _print(line, as_json=as_json)
    if not follow and not reader.is_open:
        raise FileNotFoundError
    while follow and stdout_is_read():
        for line in _at_level(reader.new_lines(), wanted):
            _print(line, as_json=as_json)
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)


class LogReader:
    """Reads the files of a log, the oldest first, and the last one as it grows, is replaced or emptied."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._opened: TextIO | None = None
        self._partial = ""

    def new_lines(self) -> Iterator[str]:
        """Yield the complete lines that were written since the last call; at first all lines."""
        while self._opened is not None or self._open_next():
            is_replaced = self._is_replaced()
            yield from self._rest()
            if not is_replaced or not self._open_next():
                return

    @property
    def is_open(self) -> bool:
        """Return whether there is a log."""
        return self._opened is not None

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open_next(self) -> bool:
        """Open the oldest file that is newer than the open one; return whether there is one."""
        found: TextIO | None = None
        for name in (self._file, *sorted(self._file.parent.glob(f"{self._file.name}.[0-9]"))):
            with suppress(FileNotFoundError):
                opened = name.open(encoding="utf-8", errors="replace")
                if not self._is_newer(opened, is_last=name == self._file):
                    opened.close()
                    break
                if found is not None:
                    found.close()
                found = opened
        if found is None:
            return False
        self.close()
        self._opened = found
        return True

    def _is_newer(self, other: TextIO, *, is_last: bool) -> bool:
        """Return whether a file was written after the open one, which may have a name that is not ours."""
        if self._opened is None:
            return True
        ours, theirs = os.fstat(self._opened.fileno()), os.fstat(other.fileno())
        return not os.path.samestat(ours, theirs) and (is_last or theirs.st_mtime_ns > ours.st_mtime_ns)

    def _rest(self) -> Iterator[str]:
        assert self._opened is not None
        if os.fstat(self._opened.fileno()).st_size < os.lseek(self._opened.fileno(), 0, os.SEEK_CUR):
            self._opened.seek(0)
        for line in self._opened:
            self._partial += line
            if line.endswith("\n"):
                yield self._partial
                self._partial = ""

    def _is_replaced(self) -> bool:
        assert self._opened is not None
        try:
            return not os.path.samestat(os.fstat(self._opened.fileno()), self._file.stat())
        except FileNotFoundError:
            return False


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
