"""G13: a disk that fills up under the broker loses nothing confirmed, and space is enough to recover."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path

import pytest

from delivery.broker import jetstream_events
from delivery.broker.connection import Link, connect
from delivery.broker.jetstream_events import JetStream
from delivery.broker.stream_config import Layout, ensure
from delivery.errors import Conflict, DeliveryError
from delivery.events.event import Event, Kind
from gateway.infra.data_dir import DataDirLock
from gateway.infra.embedded_nats import Broker, embedded

PADDING = "x" * 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 48 MB; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Rig:
    """A broker on the small disk, and its stream."""

    def __init__(self, broker: Broker, link: Link, events: JetStream) -> None:
        self.broker = broker
        self.link = link
        self.events = events
        self.seqs = [0]

    async def append(self) -> None:
        """Append one more large event."""
        event = Event.now(Kind.JOB_STARTED, "cnv_a", {"padding": PADDING}).numbered(len(self.seqs))
        self.seqs.append(await self.events.append(event, expected=self.seqs[-1]))


@pytest.fixture
async def rig(small_disk: Path) -> AsyncIterator[Rig]:
    """Run an embedded broker on the small disk."""
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(DataDirLock(small_disk / "data"))
        broker = await stack.enter_async_context(embedded(lock))
        link = await stack.enter_async_context(
            connect(broker.url, token=broker.token, unresponsive=broker.restart)
        )
        await ensure(link, Layout(budget=broker.budget))
        yield Rig(broker, link, await stack.enter_async_context(jetstream_events.opened(link, epoch="e1")))


async def test_the_budget_leaves_half_of_the_disk(rig: Rig) -> None:
    """Our own streams alone never fill the disk: old events make room for new ones."""
    assert rig.broker.budget <= 24 * 1024**2
    for _ in range(600):
        await rig.append()
    extent = await rig.events.extent("cnv_a")
    assert extent.last_seq == rig.seqs[-1]
    assert extent.first_previous > 0
    assert rig.broker.restarts == 0


async def test_a_disk_filled_by_others_loses_nothing_and_recovers(rig: Rig, small_disk: Path) -> None:
    """Appends fail while the disk is full; when there is space again everything confirmed is still there."""
    for _ in range(20):
        await rig.append()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        _fill(file)
        async with asyncio.timeout(60):
            with pytest.raises(DeliveryError):
                await _append_until_it_fails(rig, file)
    filler.unlink()
    async with asyncio.timeout(30):
        while True:
            try:
                await rig.append()
                break
            except Conflict:
                tail = await rig.events.tail("cnv_a")  # an append that was not confirmed may be there
                assert tail is not None
                rig.seqs.append(tail.seq)
            except DeliveryError:
                await asyncio.sleep(0.1)
    stored = await rig.events.read("cnv_a", after=0, limit=1000)
    assert [item.seq for item in stored] == rig.seqs[1:]
    assert [item.event.n for item in stored] == list(range(1, len(rig.seqs)))


async def _append_until_it_fails(rig: Rig, file: FileIO) -> None:
    while True:
        await rig.append()
        _fill(file)


def _fill(file: FileIO) -> None:
    try:
        while True:
            file.write(b"\0" * 65536)
    except OSError:
        return
