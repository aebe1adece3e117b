"""Standard input, output and error of commands: output that cannot be written is a clear error.

A letter that the encoding of the output does not have is printed as a question mark, and is no error.

A file descriptor that the shell closed (`>&-`) is opened again here, because the next opened file, such as a
database, would get its number.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed, ExitCode, discard_stdout, print_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputFailed(CommandFailed):
    """Standard output cannot be written; it is no OSError, so that no code takes it for one of its own."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written to stdout: {error.strerror}")


class _StandardOutput(io.FileIO):
    """The file descriptor of stdout."""

    is_needed = True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write; raises OutputFailed once, or BrokenPipeError. After that, all output is discarded.

        Nothing is raised if the output is not needed.
        """
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.is_needed:
                raise
            discard_stdout()
            if self.is_needed:
                raise OutputFailed(error) from None
            return memoryview(data).nbytes


def do_without_stdout() -> None:
    """Discard what cannot be written to stdout from now on: the command does more than print."""
    raw = sys.stdout.buffer.raw if isinstance(sys.stdout.buffer, io.BufferedWriter) else None
    if isinstance(raw, _StandardOutput):
        raw.is_needed = False


@contextmanager
def standard_streams(*, needs_stdout: bool) -> Iterator[None]:
    """Run a command; exits with a line on stderr if its output cannot be written.

    If the command does not need a closed stdout, its output is discarded.
    """
    _open_closed(needs_stdout=needs_stdout)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputFailed as error:
        print_error(str(error))
        raise SystemExit(ExitCode.FAILED) from None
    except BrokenPipeError:
        discard_stdout()


def _open_closed(*, needs_stdout: bool) -> None:
    """Open the closed ones, in the order of their numbers, and replace stdout."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        mode = os.O_RDONLY if needs_stdout else os.O_WRONLY  # writing fails with "Bad file descriptor"
        sys.stdout = _text_output(os.open(os.devnull, mode), encoding="utf-8", line_buffering=False)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        by_line = sys.stdout.line_buffering or sys.stdout.write_through  # the latter with PYTHONUNBUFFERED
        sys.stdout = _text_output(sys.stdout.fileno(), encoding=sys.stdout.encoding, line_buffering=by_line)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")


def _text_output(descriptor: int, *, encoding: str, line_buffering: bool) -> io.TextIOWrapper:
    binary = io.BufferedWriter(_StandardOutput(descriptor, "w", closefd=False))
    return io.TextIOWrapper(binary, encoding=encoding, errors="replace", line_buffering=line_buffering)
