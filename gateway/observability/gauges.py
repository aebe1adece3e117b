"""Measure gauges regularly: queues in SQL, and the dependencies of this process."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import structlog

from delivery.background import log_errors
from delivery.broker.stream_config import LogUsage
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from gateway.observability.disk import ANSWER_SECONDS, ReadFree, read_free_bytes
from gateway.observability.metrics import Metrics
from gateway.store import sandboxes
from gateway.store.turns import queue_depths

log = structlog.get_logger(__name__)

INTERVAL = 10.0
"""Seconds between measurements."""

AREAS = ("channels", "sandbox", "delivery", "gateway")
"""Packages whose log lines are counted separately; each platform and each provider has its own count."""


class QueueGauges:
    """Measures the lengths and ages of queues regularly."""

    def __init__(self, database: Database, metrics: Metrics, *, interval: float = INTERVAL) -> None:
        self._database = database
        self._metrics = metrics
        self._interval = interval

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until stopped; a database that is unavailable is tried again later."""
        await _run_regularly(stop, self._try_run_once, self._interval)

    async def _try_run_once(self) -> None:
        try:
            await self.run_once()
        except DatabaseUnavailable as error:
            log.debug("gauges.database_unavailable", error=str(error))

    async def run_once(self) -> None:
        """Measure all queues once."""
        async with self._database.read() as connection:
            depths = await queue_depths.depth(connection)
            ages = await queue_depths.oldest_age(connection, utc_now())
            states = await sandboxes.count_by_state(connection)
        for queue, length in depths.items():
            self._metrics.set("queue_depth", length, queue=queue)
        for queue, age in ages.items():
            self._metrics.set("queue_oldest_seconds", age, queue=queue)
        for state, count in states.items():
            self._metrics.set("sandboxes", count, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGauges:
    """Measures the dependencies of this process: broker, database, channels."""

    metrics: Metrics
    database: Database
    is_broker_up: Callable[[], bool]
    event_log: Callable[[], LogUsage]
    count_channels: Callable[[], Mapping[str, int]]
    interval: float = INTERVAL

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until stopped."""
        self.metrics.set("build", 1, version=version("dovecote"))
        with count_log_lines(self.metrics):
            await _run_regularly(stop, self.run_once, self.interval)

    async def run_once(self) -> None:
        """Measure once."""
        set_gauge = self.metrics.set
        set_gauge("broker_up", float(self.is_broker_up()))
        set_gauge("database_up", float(await self._database_answers()))
        usage = self.event_log()
        set_gauge("stream_fill_ratio", usage.fill)
        set_gauge("stream_days", math.nan if usage.days is None else usage.days)
        for state, count in self.count_channels().items():
            set_gauge("channels", count, state=state)

    async def _database_answers(self) -> bool:
        try:
            async with self.database.read() as connection:
                await queue_depths.ping(connection)
        except DatabaseUnavailable:
            return False
        return True


class DiskGauges:
    """Measures the free space of the data directory's disk, and of disks that are mounted in it.

    A mount may not return from a call at all: there is one attempt at a time, and what is not measured within
    `answer_seconds` is shown as NaN, so that an alert does not trust an old value. `list_directories` returns
    the directories by the names of their disks.
    """

    def __init__(
        self,
        metrics: Metrics,
        list_directories: Callable[[], Mapping[str, Path]],
        *,
        answer_seconds: float = ANSWER_SECONDS,
        read_free: ReadFree = read_free_bytes,
        interval: float = INTERVAL,
    ) -> None:
        self._metrics = metrics
        self._list_directories = list_directories
        self._answer_seconds = answer_seconds
        self._read_free = read_free
        self._interval = interval
        self._attempt: asyncio.Future[Mapping[str, float]] | None = None
        self._disks: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until stopped."""
        await _run_regularly(stop, self.run_once, self._interval)

    async def run_once(self) -> None:
        """Measure once."""
        loop = asyncio.get_running_loop()
        self._attempt = self._attempt or loop.run_in_executor(None, self._measure)
        done, _ = await asyncio.wait({self._attempt}, timeout=self._answer_seconds)
        measured: Mapping[str, float] = {}
        if done:
            attempt, self._attempt = self._attempt, None
            measured = attempt.result()
        self._disks.update(measured)
        for disk in self._disks:
            self._metrics.set("disk_free_bytes", measured.get(disk, math.nan), disk=disk)

    def _measure(self) -> Mapping[str, float]:
        measured = {}
        with suppress(OSError):  # the data directory itself is gone
            for disk, directory in self._list_directories().items():
                measured[disk] = self._free(directory)
        return measured

    def _free(self, directory: Path) -> float:
        try:
            return self._read_free(directory)
        except OSError:
            return math.nan


async def _run_regularly(
    stop: asyncio.Event, run_once: Callable[[], Awaitable[None]], interval: float
) -> None:
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(stop.wait())
        while not ending.done():
            with log_errors("gauges"):
                await run_once()
            await asyncio.wait({ending}, timeout=interval)


class LogLineCounter(logging.Handler):
    """Counts warnings and errors by the part of the program that logs them, and writes nothing."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(logging.WARNING)
        self._metrics = metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line."""
        level = "warning" if record.levelno < logging.ERROR else "error"
        self._metrics.count("log_lines", level=level, area=area_of(record.name))


def area_of(logger: str) -> str:
    """Return the area of a logger by its name."""
    package, _, rest = logger.partition(".")
    if package not in AREAS:
        return "libraries"
    part = rest.partition(".")[0]
    return f"{package}.{part}" if part and package in {"channels", "sandbox"} else package


@contextmanager
def count_log_lines(metrics: Metrics) -> Iterator[None]:
    """Count warnings and errors that are logged until the block ends."""
    handler = LogLineCounter(metrics)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
