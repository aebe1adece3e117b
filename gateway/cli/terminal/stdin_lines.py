"""Lines typed at the terminal, without a thread that nobody can stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lines:
    """Cuts the bytes of standard input into lines and hands each to `put`; None is the end."""

    def __init__(self, put: Callable[[str | None], None]) -> None:
        self._put = put
        self._rest = b""

    def take(self, piece: bytes) -> None:
        """Take some bytes of input; an empty piece is the end."""
        if not piece:
            if self._rest:
                self._hand_over(self._rest)
            self._rest = b""
            self._put(None)
            return
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for line in whole:
            self._hand_over(line)

    def _hand_over(self, line: bytes) -> None:
        self._put(line.decode("utf-8", "replace").rstrip("\r"))

    def read(self, descriptor: int) -> bool:
        """Read what is there; says whether more may come."""
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            piece = b""
        self.take(piece)
        return bool(piece)


@contextmanager
def typed_lines(descriptor: int, put: Callable[[str | None], None]) -> Iterator[None]:
    """Follow a descriptor in the running loop; a regular file is read at once."""
    loop = asyncio.get_running_loop()
    lines = Lines(put)

    def on_readable() -> None:
        if not lines.read(descriptor):
            loop.remove_reader(descriptor)

    try:
        loop.add_reader(descriptor, on_readable)
    except PermissionError:  # epoll takes no regular files; they never block
        while lines.read(descriptor):
            pass
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
