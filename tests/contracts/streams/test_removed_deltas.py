"""Deltas of a turn that has ended leave the event log, whose space is for lasting events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.events.event import Event, EventType
from nats_servers import nats_server

LOG_BYTES = 1_000_000
LASTING = 20
TURNS = 12
DELTAS_OF_A_TURN = 200
TEXT = "x" * 500
NEVER = 3600.0


@asynccontextmanager
async def _open_small_log(directory: Path, *, remove_every: float = NEVER) -> AsyncIterator[JetStreamEvents]:
    """Open an event log of a megabyte on a nats-server."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(directory / "nats"))
        nats = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats, StreamConfig(max_bytes=500_000_000, event_log_bytes=LOG_BYTES))
        opened = jetstream_events.open_events(nats, epoch="e1", remove_every=remove_every)
        yield await stack.enter_async_context(opened)


async def _append(
    stream: JetStreamEvents, kind: EventType, turn: str, *, conversation: str = "cnv_a", expected: int = 0
) -> int:
    event = Event.now(kind, conversation, {}, turn=turn).numbered(1)
    return await stream.append(event, expected=expected, account="acc")


async def _publish_deltas(stream: JetStreamEvents, turn: str, count: int) -> None:
    for part in range(count):
        data = {"message": f"msg_{turn}", "part": part, "text": TEXT, "attempt": 1}
        delta = Event.now(EventType.MESSAGE_DELTA, "cnv_a", data, turn=turn)
        await stream.publish_transient(delta, account="acc")


async def _stored(stream: JetStreamEvents, conversation: str = "cnv_a") -> tuple[int, int]:
    """Return how many lasting events and how many deltas a conversation has."""
    stored = await stream.read(conversation, account="acc", after=0, limit=1000)
    deltas = len([one for one in stored if one.transient])
    return len(stored) - deltas, deltas


async def test_deltas_of_ended_turns_leave_their_space_to_lasting_events(tmp_path: Path) -> None:
    """More deltas than the log can hold, turn after turn, evict no event of another conversation."""
    async with _open_small_log(tmp_path) as stream:
        seq = 0
        for _ in range(LASTING):
            seq = await _append(stream, EventType.JOB_STARTED, "trn_b", conversation="cnv_b", expected=seq)
        seq = 0
        for number in range(TURNS):
            seq = await _append(stream, EventType.TURN_STARTED, f"trn_{number}", expected=seq)
            await _publish_deltas(stream, f"trn_{number}", DELTAS_OF_A_TURN)
            seq = await _append(stream, EventType.TURN_COMPLETED, f"trn_{number}", expected=seq)
            await stream.remove_deltas()
        assert TURNS * DELTAS_OF_A_TURN * len(TEXT) > LOG_BYTES
        assert await _stored(stream, "cnv_b") == (LASTING, 0)
        assert await _stored(stream) == (2 * TURNS, 0)


async def test_deltas_of_a_turn_that_goes_on_stay(tmp_path: Path) -> None:
    """A removal takes the deltas before the end of a turn, not those of the turn after it."""
    async with _open_small_log(tmp_path) as stream:
        await _publish_deltas(stream, "trn_1", 3)
        await stream.remove_deltas()
        assert await _stored(stream) == (0, 3)
        end = await _append(stream, EventType.TURN_CANCELLED, "trn_1")
        await _append(stream, EventType.TURN_STARTED, "trn_2", expected=end)
        await _publish_deltas(stream, "trn_2", 2)
        await stream.remove_deltas()
        assert await _stored(stream) == (2, 2)


async def test_deltas_are_removed_regularly(tmp_path: Path) -> None:
    """The stream removes them itself soon after the turn has ended."""
    async with _open_small_log(tmp_path, remove_every=0.01) as stream:
        await _publish_deltas(stream, "trn_1", 3)
        await _append(stream, EventType.TURN_FAILED, "trn_1")
        async with asyncio.timeout(10):
            while await _stored(stream) != (1, 0):  # noqa: ASYNC110 - the broker removes them
                await asyncio.sleep(0.01)
