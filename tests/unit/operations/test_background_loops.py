"""A pass of a background task that raises is logged, and the next pass runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delivery.broker.stream_config import LogUsage
from delivery.database.engine import Database
from delivery.events.event import Event, EventType
from gateway.accounts.api_keys import Principal
from gateway.environments.workspaces import Workspaces
from gateway.files.storage.blob_store import BlobStore
from gateway.files.storage.file_store import FileStore
from gateway.maintenance.deletion import ConversationDeletion
from gateway.maintenance.workspace_sync import WorkspaceSyncLoop
from gateway.observability.gauges import ProcessGauges, QueueGauges
from gateway.observability.metrics import Metrics
from gateway.observability.tracing.span_recorder import SpanExporter, SpanRecorder
from gateway.turns.cancellation import CancellationWatcher
from gateway.web.stream.readers import StreamReaders

Run = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
PAUSE = 0.001


class FailingDatabase:
    """Raises an error that no caller expects, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Any]:
        """Fail."""
        self.fail()
        yield

    begin = read

    def fail(self) -> Any:
        """Count and raise."""
        self.calls += 1
        raise LookupError("nobody expects this")

    def as_database(self) -> Database:
        """Return it as the type that the tasks take."""
        return cast("Database", self)


def _files(failing: FailingDatabase, _place: Path) -> Run:
    return FileStore(
        failing.as_database(), cast("BlobStore", None), retention=timedelta(days=1), interval=PAUSE
    ).run


def _deletion(failing: FailingDatabase, _place: Path) -> Run:
    nothing, transactions = cast("Any", None), cast("Any", SimpleNamespace(database=failing.as_database()))
    return ConversationDeletion(transactions, nothing, nothing, cancel=print, interval=PAUSE).run


def _workspace_sync(failing: FailingDatabase, _place: Path) -> Run:
    copies = SimpleNamespace(list_existing=failing.fail)
    workspaces = SimpleNamespace(working_copies=copies, bucket=copies)
    database, held = failing.as_database(), cast("Workspaces", workspaces)
    return WorkspaceSyncLoop(database, held, interval=PAUSE, sweep_enabled=False).run


def _queue_gauges(failing: FailingDatabase, _place: Path) -> Run:
    return QueueGauges(failing.as_database(), Metrics(), interval=PAUSE).run


def _process_gauges(failing: FailingDatabase, _place: Path) -> Run:
    return ProcessGauges(
        metrics=Metrics(),
        database=failing.as_database(),
        is_broker_up=failing.fail,
        event_log=LogUsage,
        count_channels=dict,
        interval=PAUSE,
    ).run


def _cancellation(failing: FailingDatabase, _place: Path) -> Run:
    watcher = CancellationWatcher(failing.as_database(), interval=PAUSE)

    async def run(stop: asyncio.Event) -> None:
        running = asyncio.create_task(watcher.run(stop))
        with watcher.track("trn_1", failing.fail):
            await asyncio.wait({running, asyncio.ensure_future(stop.wait())}, return_when="FIRST_COMPLETED")
        await running

    return run


def _spans(failing: FailingDatabase, _place: Path) -> Run:
    exporter = cast("SpanExporter", SimpleNamespace(close=failing.fail))
    recorder = SpanRecorder(database=failing.as_database(), open_exporter=lambda: exporter)
    for turn in ("trn_1", "trn_2"):
        recorder.on_event(Event.now(EventType.TURN_COMPLETED, "cnv_1", {}, turn=turn))
    return recorder.run


def _key_checks(failing: FailingDatabase, _place: Path) -> Run:
    async def fail(_keys: object) -> dict[str, frozenset[str]]:
        return dict(failing.fail())

    async def run(stop: asyncio.Event) -> None:
        connections = StreamReaders(interval=PAUSE)
        principal = Principal(account="acc_1", key="key_1", scopes=frozenset())
        with connections.register(principal):
            await connections.run(fail, stop)

    return run


LOOPS = (
    _files,
    _deletion,
    _workspace_sync,
    _queue_gauges,
    _process_gauges,
    _cancellation,
    _spans,
    _key_checks,
)


@pytest.mark.parametrize("make", LOOPS, ids=lambda make: make.__name__.strip("_"))
async def test_the_next_pass_runs_after_one_that_raises(
    make: Callable[[FailingDatabase, Path], Run], tmp_path: Path
) -> None:
    """An error of a kind that the loop does not name ends neither the loop nor the group of all tasks."""
    failing, stop = FailingDatabase(), asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(make(failing, tmp_path)(stop))
        while failing.calls < 2:  # noqa: ASYNC110 - the loops have no event for it
            await asyncio.sleep(PAUSE)
        stop.set()
