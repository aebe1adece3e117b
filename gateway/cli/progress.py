"""A line on the terminal that says what a command waits for, once that takes two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PATIENCE_SECONDS = 2.0
INTERVAL_SECONDS = 1.0
_ERASE = "\r\x1b[K"


class Progress:
    """What a command waits for; `detail` may change while it waits."""

    def __init__(self, label: str, stream: TextIO, patience: float) -> None:
        self.detail = ""
        self._label = label
        self._stream = stream
        self._patience = patience
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to wait; nothing is shown before the patience is over."""
        self._thread.start()

    def end(self) -> None:
        """Erase the line."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        wait, is_shown = self._patience, False
        while not self._ended.wait(wait):
            seconds = int(time.monotonic() - self._began)
            parts = [part for part in (f"{self._label} …", self.detail, f"{seconds} s") if part]
            self._stream.write(_ERASE + " ".join(parts)[:79])
            self._stream.flush()
            wait, is_shown = INTERVAL_SECONDS, True
        if is_shown:
            self._stream.write(_ERASE)
            self._stream.flush()


_silent = Progress("", sys.stderr, 0.0)
_is_shown = False


@contextmanager
def progress(
    label: str, *, stream: TextIO | None = None, patience: float = PATIENCE_SECONDS
) -> Iterator[Progress]:
    """Show on stderr what is waited for, if that is a terminal; inside another one, that one continues."""
    from gateway.config.load import environment

    global _is_shown  # noqa: PLW0603 - a process has one terminal
    target = stream or sys.stderr
    if _is_shown or not target.isatty() or environment("TERM") == "dumb":
        yield _silent
        return
    shown, _is_shown = Progress(label, target, patience), True
    shown.start()
    try:
        yield shown
    finally:
        shown.end()
        _is_shown = False
