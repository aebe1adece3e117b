"""The log in the data directory, which `dovecote logs` reads: JSON lines in files of bounded size."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from gateway.observability.log_repeats import RepeatFilter
from gateway.observability.log_setup import json_formatter

FILES = 4
"""Files that share the space; the oldest one is deleted for the next."""


def log_path(data_dir: Path) -> Path:
    """Return the file that the gateway of a data directory writes; older ones have `.1` and so on."""
    return data_dir / "logs" / "gateway.log"


class _LogFile(RotatingFileHandler):
    """A file handler for which a full disk is no error: the same lines are on stderr.

    If the file was moved or deleted, as by logrotate, the next line begins a new one.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        if self.stream is not None and self._is_moved(self.stream.fileno()):
            with suppress(OSError):  # what the disk has no space for is lost
                self.stream.close()
            self.stream = None
        super().emit(record)

    def _is_moved(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(Path(self.baseFilename).stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return True
        except OSError:  # the directory is closed to us now
            return False

    def close(self) -> None:
        """Close the file; what could not be written before is tried once more, and is lost."""
        with suppress(OSError):
            super().close()

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(mode=0o700, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is the library's
        """Drop the line."""


@contextmanager
def logged_to_file(data_dir: Path, *, limit: int, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Write log lines to the data directory too, in at most `limit` bytes; 0: write none.

    Only one process may do so at a time, because files are renamed.
    """
    if not limit:
        yield
        return
    file = log_path(data_dir)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    size = max(limit // FILES, 1)
    handler = _LogFile(file, maxBytes=size, backupCount=FILES - 1, encoding="utf-8", delay=True)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(json_formatter(secrets))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
