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
from delivery.database.engine import Database, Unavailable
from gateway.observability.metrics import Metrics
from gateway.store import sandboxes
from gateway.store.turns import queue_depths

log = structlog.get_logger(__name__)

LOOK_EVERY = 10.0
"""Seconds between looks."""

AREAS = ("channels", "sandbox", "delivery", "gateway")
"""Parts of the program whose log lines are counted apart; a platform or provider is a part of its own."""


class Depths:
    """Looks now and then at how much is waiting, and for how long."""

    def __init__(self, database: Database, metrics: Metrics, *, every: float = LOOK_EVERY) -> None:
        self._database = database
        self._metrics = metrics
        self._every = every

    async def run(self, stop: asyncio.Event) -> None:
        """Look until stopped; a database that is away is looked at again later."""
        await _look_until(stop, self._try_to_look, self._every)

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except Unavailable as error:
            log.debug("depths.unavailable", error=str(error))

    async def look(self) -> None:
        """Read the lengths and ages of all queues once."""
        async with self._database.read() as connection:
            found = await queue_depths.waiting(connection)
            ages = await queue_depths.oldest(connection, utc_now())
            states = await sandboxes.states(connection)
        for queue, length in found.items():
            self._metrics.show("queue_depth", length, queue=queue)
        for queue, age in ages.items():
            self._metrics.show("queue_oldest_seconds", age, queue=queue)
        for state, many in states.items():
            self._metrics.show("sandboxes", many, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Looks at what this process stands on: broker, database, disk, channels."""

    metrics: Metrics
    database: Database
    directory: Path
    is_broker_up: Callable[[], bool]
    fill: Callable[[], float]
    channels: Callable[[], Mapping[str, int]]
    every: float = LOOK_EVERY

    async def run(self, stop: asyncio.Event) -> None:
        """Look until stopped."""
        self.metrics.show("build", 1, version=version("dovecote"))
        with counted_lines(self.metrics):
            await _look_until(stop, self.look, self.every)

    async def look(self) -> None:
        """Look once."""
        show = self.metrics.show
        show("broker_up", float(self.is_broker_up()))
        show("database_up", float(await self._answers()))
        show("stream_fill_ratio", self.fill())
        show("disk_free_bytes", shutil.disk_usage(self.directory).free)
        for state, many in self.channels().items():
            show("channels", many, state=state)

    async def _answers(self) -> bool:
        try:
            async with self.database.read() as connection:
                await queue_depths.ask(connection)
        except Unavailable:
            return False
        return True


async def _look_until(stop: asyncio.Event, look: Callable[[], Awaitable[None]], every: float) -> None:
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(stop.wait())
        while not ending.done():
            await look()
            await asyncio.wait({ending}, timeout=every)


class CountedLines(logging.Handler):
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
def counted_lines(metrics: Metrics) -> Iterator[None]:
    """Count the warnings and errors that are logged meanwhile."""
    handler = CountedLines(metrics)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
