"""G13: a disk that fills up loses nothing confirmed, nor the end of a job, and space is enough to recover."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path

import pytest

from delivery.broker import jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import AppendConflict, DeliveryError
from delivery.events.event import Event, EventType
from gateway.accounts.vault import associated_data, open_vault
from gateway.config.settings import Settings
from gateway.infra.data_dir import DataDirLock, DataDirUnusable, prepare_data_dir
from gateway.infra.embedded_nats import EmbeddedNats, open_embedded_nats
from gateway.infra.preflight import describe_exhaustion
from gateway_process import GatewayProcess
from sandbox.errors import ProviderRefused
from sandbox.host.run.job_spec import LOCK, acquire_lock, is_supervised
from sandbox.lifecycle.external import open_provider
from sandbox.model import BackgroundJob, BackgroundJobState
from sandbox.testing.waiting import until, wait_for_job, wait_for_output
from sandbox_rigs import VARIANTS
from small_disks import fill_disk, mount_small_disk

PADDING = "x" * 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 48 MB; needs the right to mount."""
    with mount_small_disk(tmp_path / "disk", 48) as place:
        yield place


class SmallDiskNats:
    """A broker on the small disk, and its stream."""

    def __init__(
        self, nats_server: EmbeddedNats, connection: NatsConnection, events: JetStreamEvents
    ) -> None:
        self.nats_server = nats_server
        self.connection = connection
        self.events = events
        self.seqs = [0]

    async def append(self) -> None:
        """Append one more large event."""
        event = Event.now(EventType.JOB_STARTED, "cnv_a", {"padding": PADDING}).numbered(len(self.seqs))
        self.seqs.append(await self.events.append(event, expected=self.seqs[-1], account="acc"))


@pytest.fixture
async def small_disk_nats(small_disk: Path) -> AsyncIterator[SmallDiskNats]:
    """Run an embedded broker on the small disk."""
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(DataDirLock(small_disk / "data"))
        broker = await stack.enter_async_context(open_embedded_nats(lock))
        nats_connection = await stack.enter_async_context(
            connect(broker.url, token=broker.token, on_unresponsive=broker.check)
        )
        await ensure_streams(nats_connection, StreamConfig(max_bytes=broker.storage_bytes))
        yield SmallDiskNats(
            broker,
            nats_connection,
            await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1")),
        )


def test_a_read_only_data_directory_is_refused_by_name(small_disk: Path) -> None:
    """The error names the setting, the path and the remedy; what is stored can still be read."""
    data = small_disk / "data"
    prepare_data_dir(data)
    sealed = open_vault(data).encrypt(associated_data("t", "r", "f"), "a secret")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DataDirUnusable, match=r"--data, DOVECOTE_DATA_DIR\): this user cannot write to it"):
        prepare_data_dir(data)
    assert open_vault(data).decrypt(associated_data("t", "r", "f"), sealed) == "a secret"


async def test_the_budget_leaves_half_of_the_disk(small_disk_nats: SmallDiskNats) -> None:
    """Our own streams alone never fill the disk: old events make room for new ones."""
    assert small_disk_nats.nats_server.storage_bytes <= 24 * 1024**2
    for _ in range(600):
        await small_disk_nats.append()
    extent = await small_disk_nats.events.bounds("cnv_a", account="acc")
    assert extent.last_seq == small_disk_nats.seqs[-1]
    assert extent.first_previous > 0
    assert small_disk_nats.nats_server.restarts == 0


async def test_a_disk_filled_by_others_loses_nothing_and_recovers(
    small_disk_nats: SmallDiskNats, small_disk: Path
) -> None:
    """Appends fail while the disk is full; when there is space again everything confirmed is still there."""
    for _ in range(20):
        await small_disk_nats.append()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        fill_disk(file)
        async with asyncio.timeout(60):
            with pytest.raises(DeliveryError):
                await _append_until_it_fails(small_disk_nats, file)
    filler.unlink()
    async with asyncio.timeout(30):
        while True:
            try:
                await small_disk_nats.append()
                break
            except AppendConflict:
                tail = await small_disk_nats.events.tail(
                    "cnv_a", account="acc"
                )  # an append that was not confirmed may be there
                assert tail is not None
                small_disk_nats.seqs.append(tail.seq)
            except DeliveryError:
                await asyncio.sleep(0.1)
    stored = await small_disk_nats.events.read("cnv_a", after=0, limit=1000, account="acc")
    assert [item.seq for item in stored] == small_disk_nats.seqs[1:]
    assert [item.event.n for item in stored] == list(range(1, len(small_disk_nats.seqs)))


async def test_a_start_on_a_full_disk_names_the_directory_and_the_remedy(small_disk: Path) -> None:
    """A supervisor starts the gateway again while the disk is still full."""
    data = small_disk / "data"
    data.mkdir(mode=0o700)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        fill_disk(filler)
    process = GatewayProcess(data)
    await process.start(wait=False)
    assert await process.wait_for_exit(60) == 1
    said = "\n".join(process.log)
    assert "the disk is full; an operator must free space" in said
    assert f"data_dir = {data} (--data, DOVECOTE_DATA_DIR) has 0.0 MB free" in said


def test_a_full_disk_below_the_data_directory_is_named(tmp_path: Path) -> None:
    """The one of the event log, for example: the data directory itself has plenty of space."""
    (tmp_path / "data").mkdir()
    with mount_small_disk(tmp_path / "data" / "nats", 8) as nats:
        with (nats / "filler").open("wb", buffering=0) as filler:
            fill_disk(filler)
        said = describe_exhaustion(Settings(data_dir=tmp_path / "data"), OSError(errno.ENOSPC, "full"))
    assert said is not None
    assert said.endswith(f"; {nats}, a disk of its own, has 0.0 MB free")


async def _append_until_it_fails(rig: SmallDiskNats, file: FileIO) -> None:
    while True:
        await rig.append()
        fill_disk(file)


async def test_a_job_that_ends_on_a_full_disk_keeps_its_exit_code_and_output(small_disk: Path) -> None:
    """The job counts as running until there is space to record its end; then its own end is reported."""
    rig = VARIANTS["host"]["rlimits"](small_disk)
    async with open_provider(rig.plugin, rig.settings, rig.provider_context) as provider:
        sandbox = await provider.create(rig.spec())
        script = "touch hold; echo before; while [ -e hold ]; do sleep 0.05; done; echo after; exit 3"
        await sandbox.spawn(BackgroundJob(id="job_1", script=script, token="t"))
        await wait_for_output(sandbox, "job_1", b"before")
        supervisor = _supervisor_below(small_disk)
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            fill_disk(filler)
            (rig.workspace / "hold").unlink()
            fill_disk(filler)
            await until(lambda: asyncio.to_thread(_has_no_children, supervisor))
            assert (await sandbox.report("job_1")).state is BackgroundJobState.RUNNING
        (small_disk / "filler").unlink()
        report = await wait_for_job(sandbox, "job_1")
        assert (report.exit_code, report.output) == (3, b"before\nafter\n")
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            fill_disk(filler)
            with pytest.raises(ProviderRefused, match="did not start: No space left on device"):
                await sandbox.spawn(BackgroundJob(id="job_2", script="true", token="t"))
        await provider.destroy(sandbox.id)  # with the supervisor, which would report to a gateway


def _supervisor_below(directory: Path) -> int:
    (started,) = directory.rglob("jobs/*/started")
    return int(json.loads(started.read_bytes())["pid"])


def _has_no_children(process: int) -> bool:
    children = Path(f"/proc/{process}/task/{process}/children")
    return not children.exists() or not children.read_bytes().strip()


@pytest.mark.parametrize("name", ["url", "nats/server.conf"])
async def test_a_file_that_cannot_be_removed_is_no_error_at_the_end(name: str, tmp_path: Path) -> None:
    """A gateway ends as usual on a disk that only reads; a directory cannot be removed like a file either."""
    gateway = await GatewayProcess(tmp_path / "data").start()
    place = tmp_path / "data" / name
    place.unlink()
    place.mkdir()
    assert await gateway.kill(signal.SIGTERM) == 0


def test_a_job_on_a_disk_that_only_reads_is_found(small_disk: Path) -> None:
    """Its state is asked every few seconds, and needs nothing to be written."""
    job, ended, never = (small_disk / name for name in ("job", "ended", "never"))
    for directory in (job, ended, never):
        directory.mkdir()
    for directory in (job, ended):
        descriptor = acquire_lock(directory)
        assert descriptor is not None
        os.close(descriptor)
    with (job / LOCK).open("rb") as supervisor:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        fcntl.flock(supervisor, fcntl.LOCK_EX)
        assert [is_supervised(one) for one in (job, ended, never)] == [True, False, False]
