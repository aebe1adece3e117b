"""Lines from standard input, read without a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StdinLines:
    """Splits standard input into lines and passes each to `put`; None is the end."""

    def __init__(self, on_line: Callable[[str | None], None]) -> None:
        self._on_line = on_line
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Add some bytes of input; an empty piece is the end."""
        if not piece:
            if self._rest:
                self._pass_line(self._rest)
            self._rest = bytearray()
            self._on_line(None)
            return
        first, *others = piece.split(b"\n")
        self._rest += first
        for other in others:
            self._pass_line(self._rest)
            self._rest = bytearray(other)

    def _pass_line(self, line: bytearray) -> None:
        self._on_line(line.decode("utf-8", "replace").rstrip("\r"))

    def read(self, descriptor: int) -> bool:
        """Read the available input; returns whether more may follow."""
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            piece = b""
        self.feed(piece)
        return bool(piece)


@contextmanager
def stdin_lines(descriptor: int, on_line: Callable[[str | None], None]) -> Iterator[None]:
    """Read a descriptor in the running loop; a regular file is read immediately."""
    loop = asyncio.get_running_loop()
    lines = StdinLines(on_line)

    def on_readable() -> None:
        if not lines.read(descriptor):
            loop.remove_reader(descriptor)

    try:
        loop.add_reader(descriptor, on_readable)
    except PermissionError:  # epoll does not support regular files, which never block
        while lines.read(descriptor):
            pass
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
