"""A small stream in memory, and a server of its events and WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from delivery.broker.memory_events import MemoryEvents
from stream_server import RETAINED, StreamServer, stream_server


@pytest.fixture
def events() -> MemoryEvents:
    """Make a stream that keeps few events."""
    return MemoryEvents(epoch="e1", max_events=RETAINED)


@pytest.fixture
async def server(events: MemoryEvents) -> AsyncIterator[StreamServer]:
    """Serve the stream."""
    async with stream_server(events) as face:
        yield face
