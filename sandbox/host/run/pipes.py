"""Read and write the pipes of a running command on the event loop, with limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable

CHUNK = 65536


class PipeReader:
    """Reads a pipe until its end and keeps the first `limit` bytes; the rest is dropped."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self.limit = limit
        self.on_content: Callable[[bytes], None] | None = None
        self._loop = asyncio.get_running_loop()
        self.content = bytearray()
        self.truncated = False
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self.read_available)

    def read_available(self) -> None:
        """Read the available bytes."""
        if self.ended.is_set():
            return
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        free = self.limit - len(self.content)
        self.truncated = self.truncated or len(chunk) > free
        self.content += chunk[:free]
        if self.on_content is not None and free > 0:
            self.on_content(chunk[:free])

    def close(self) -> None:
        """Stop reading and close the pipe; the bytes read so far are kept."""
        if not self.ended.is_set():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set()


class PipeWriter:
    """Writes bytes into a pipe as fast as it is read, then closes it; the reader may close it early."""

    def __init__(self, descriptor: int, content: bytes) -> None:
        self._descriptor = descriptor
        self._rest = memoryview(content)
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(descriptor, False)
        self._loop.add_writer(descriptor, self._write)

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # the reader has closed its end
            self._rest = memoryview(b"")
        if not self._rest:
            self.close()

    def close(self) -> None:
        """Stop writing and close the pipe."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)


class ProcessWatcher:
    """Signals the end of any process; one that no longer exists counts as ended."""

    def __init__(self, pid: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self._descriptor = -1
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.ended.set()
            return
        self._loop.add_reader(self._descriptor, self._end)

    def has_ended(self) -> bool:
        """Return whether the process has ended, also if the event loop has not noticed yet."""
        if not self.ended.is_set():
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(0):
                self._end()
        return self.ended.is_set()

    def _end(self) -> None:
        self.ended.set()
        self.close()

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
