"""What is looked at now and then, for the gauges: queues in SQL, and what this process stands on."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from gateway.observability.metrics import Metrics
from gateway.store import sandboxes
from gateway.store.turns import queue_depths

log = structlog.get_logger(__name__)

INTERVAL = 10.0
"""Seconds between looks."""

AREAS = ("channels", "sandbox", "delivery", "gateway")
"""Parts of the program whose log lines are counted apart; a platform or provider is a part of its own."""


class QueueGauges:
    """Looks now and then at how much is waiting, and for how long."""

    def __init__(self, database: Database, metrics: Metrics, *, interval: float = INTERVAL) -> None:
        self._database = database
        self._metrics = metrics
        self._interval = interval

    async def run(self, stop: asyncio.Event) -> None:
        """Look until stopped; a database that is away is looked at again later."""
        await _run_regularly(stop, self._try_run_once, self._interval)

    async def _try_run_once(self) -> None:
        try:
            await self.run_once()
        except DatabaseUnavailable as error:
            log.debug("gauges.database_unavailable", error=str(error))

    async def run_once(self) -> None:
        """Read the lengths and ages of all queues once."""
        async with self._database.read() as connection:
            found = await queue_depths.depth(connection)
            ages = await queue_depths.oldest_age(connection, utc_now())
            states = await sandboxes.count_by_state(connection)
        for queue, length in found.items():
            self._metrics.set("queue_depth", length, queue=queue)
        for queue, age in ages.items():
            self._metrics.set("queue_oldest_seconds", age, queue=queue)
        for state, many in states.items():
            self._metrics.set("sandboxes", many, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGauges:
    """Looks at what this process stands on: broker, database, disk, channels."""

    metrics: Metrics
    database: Database
    directory: Path
    is_broker_up: Callable[[], bool]
    stream_fill_ratio: Callable[[], float]
    count_channels: Callable[[], Mapping[str, int]]
    interval: float = INTERVAL

    async def run(self, stop: asyncio.Event) -> None:
        """Look until stopped."""
        self.metrics.set("build", 1, version=version("dovecote"))
        with count_log_lines(self.metrics):
            await _run_regularly(stop, self.run_once, self.interval)

    async def run_once(self) -> None:
        """Look once."""
        show = self.metrics.set
        show("broker_up", float(self.is_broker_up()))
        show("database_up", float(await self._database_answers()))
        show("stream_fill_ratio", self.stream_fill_ratio())
        show("disk_free_bytes", shutil.disk_usage(self.directory).free)
        for state, many in self.count_channels().items():
            show("channels", many, state=state)

    async def _database_answers(self) -> bool:
        try:
            async with self.database.read() as connection:
                await queue_depths.ping(connection)
        except DatabaseUnavailable:
            return False
        return True


async def _run_regularly(
    stop: asyncio.Event, run_once: Callable[[], Awaitable[None]], interval: float
) -> None:
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(stop.wait())
        while not ending.done():
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
    """Return the part of the program that a logger's name stands for."""
    package, _, rest = logger.partition(".")
    if package not in AREAS:
        return "libraries"
    part = rest.partition(".")[0]
    return f"{package}.{part}" if part and package in {"channels", "sandbox"} else package


@contextmanager
def count_log_lines(metrics: Metrics) -> Iterator[None]:
    """Count the warnings and errors that are logged meanwhile."""
    handler = LogLineCounter(metrics)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
