"""Parse a stream of server-sent events (HTML Living Standard, section 9.2.6) in linear time."""

from __future__ import annotations

from typing import Protocol

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Bytes of one event. The largest real ones hold the arguments of a whole tool call."""


class EventTooLarge(ValueError):
    """An event exceeds MAX_EVENT_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"an event exceeds {MAX_EVENT_BYTES} bytes")


class EventParser(Protocol):
    """Takes blocks of bytes as they arrive and returns the data of the events that they complete."""

    def feed(self, block: bytes) -> list[bytes]:
        """Return the data of each event that ends in this block; raises EventTooLarge."""

    def close(self) -> list[bytes]:
        """Return the data of an event that the end of the stream completes."""


class EventStreamParser(EventParser):
    """Takes blocks of bytes as they arrive and returns the data of the events that they complete.

    Each byte is looked at once. Comments, and fields other than `data`, are skipped.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._line_size = 0
        self._data_size = 0
        self._ends_with_return = False

    def feed(self, block: bytes) -> list[bytes]:
        """Return the data of each event that ends in this block; raises EventTooLarge."""
        if self._ends_with_return and block.startswith(b"\n"):
            block = block[1:]
        if not block:
            return []
        self._ends_with_return = block.endswith(b"\r")
        lines = block.splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._end_line(line.rstrip(b"\r\n"), events)
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
        if self._line_size + self._data_size > MAX_EVENT_BYTES:
            raise EventTooLarge
        return events

    def close(self) -> list[bytes]:
        """Return the data of an event that the end of the stream completes."""
        events: list[bytes] = []
        self._end_line(b"", events)
        self._end_line(b"", events)
        return events

    def _end_line(self, end: bytes, events: list[bytes]) -> None:
        if self._line:
            self._line.append(end)
            end = b"".join(self._line)
            self._line.clear()
            self._line_size = 0
        if not end:
            self._data_size = 0
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        elif end.startswith(b"data:"):
            self._data_size += len(end)
            self._data.append(end[6:] if end.startswith(b"data: ") else end[5:])


class WholeDocument(EventParser):
    """Takes one JSON document as one event: some servers do not stream, and some report errors with a 200.

    A stream of events with JSON's media type is read as such.
    """

    def __init__(self) -> None:
        self._stream: EventStreamParser | None = None
        self._blocks: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """Keep a block, or return the data of the events that end in it; raises EventTooLarge."""
        if not self._blocks and self._stream is None and not block.lstrip().startswith((b"{", b"[")):
            self._stream = EventStreamParser()
        if self._stream is not None:
            return self._stream.feed(block)
        self._size += len(block)
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLarge
        self._blocks.append(block)
        return []

    def close(self) -> list[bytes]:
        """Return the document."""
        if self._stream is not None:
            return self._stream.close()
        return [b"".join(self._blocks)] if self._blocks else []
