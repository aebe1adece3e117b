"""The life of a gateway process: start all components, wait for a signal, stop them in order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import DBAPIError

from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError
from delivery.fair_event_loop import FairEventLoop
from delivery.fair_threads import FairThreadPool
from gateway import listeners
from gateway.accounts.entry_codes import LIFETIME, EntryCodes
from gateway.composition.components import build_components
from gateway.config.settings import Settings
from gateway.environments.backends import providers_inspected
from gateway.infra.backing_services import BackgroundTask, open_backing_services
from gateway.infra.data_dir import DataDirBusy, DataDirExposed, DataDirUnusable
from gateway.infra.embedded_nats import EmbeddedNatsFailed
from gateway.infra.preflight import (
    DatabaseFileUnusable,
    DatabaseInUse,
    DatabaseLeftBehind,
    DatabaseLost,
    DatabaseRefused,
    DependencyUnavailable,
    ListenFailed,
    SecretKeyMismatch,
    describe_damage,
    describe_exhaustion,
    describe_inaccessible,
)
from gateway.infra.replica_presence import BrokerInUse
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.migrations import UnknownRevision
from gateway.observability.event_loop_watchdog import event_loop_watched
from gateway.observability.fault_points import UnknownFaultPoint
from gateway.records.errors import InvalidRecord
from gateway.services import Services
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

RECEIVE_TIMEOUT = 3.0
"""Seconds that the start waits for channels to receive; `/readyz` reports slower ones."""

COLLECTION_THRESHOLDS = (5_000, 10, 50)
"""Objects between two collections of the youngest, and collections of each age between those of the next.

Nothing else runs during a collection. With Python's 700, 10 and 10, 150 turns in progress are 35 collections
a second, and every third second one of everything, which takes up to 35 ms.
"""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that stop the gateway in order; a terminal that closes sends SIGHUP."""

THREADS = 32
"""Threads for calls that block, such as those on files."""


def run(settings: Settings) -> int:
    """Run the gateway until one of `STOP_SIGNALS`; returns the exit code.

    Only its user can read the files that it creates.
    """
    expected = (
        DataDirBusy,
        DataDirExposed,
        DataDirUnusable,
        EmbeddedNatsFailed,
        DeliveryError,
        DatabaseUnavailable,
        SandboxError,
        UnknownFaultPoint,
        OSError,
    )
    # A supervisor tries these again, and not code 2.
    temporary = (BrokerInUse, DatabaseInUse, DependencyUnavailable, ListenFailed)
    unstartable = (
        DatabaseFileUnusable,
        DatabaseLeftBehind,
        DatabaseLost,
        InvalidRecord,
        DatabaseRefused,
        SecretKeyMismatch,
        UnknownRevision,
    )
    os.umask(0o077)
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        _serve_unwrapped(settings)
    except (*unstartable, *temporary) as error:
        damaged = describe_damage(settings, error)
        print(f"dovecote: {damaged or error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1 if isinstance(error, temporary) and not damaged else 2
    except (*expected, DBAPIError) as error:
        damaged = describe_damage(settings, error)
        described = describe_exhaustion(settings, error) or describe_inaccessible(settings, error)
        reason = damaged or described or _first_line(error)
        print(f"dovecote: {reason}", file=sys.stderr)  # noqa: T201 - for the operator
        return 2 if damaged else 1
    gc.freeze()  # everything is closed: skip the interpreter's last search for reference cycles
    return 0


def _serve_unwrapped(settings: Settings) -> None:
    """Serve; raises a single error as itself, without the exception groups of the tasks around it."""
    try:
        with asyncio.Runner(loop_factory=FairEventLoop) as runner:
            runner.run(_serve(settings))
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(FairThreadPool(settings.pool(THREADS), name="blocking"))
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
            loop.add_signal_handler(number, stop.set)
    limit = max(settings.watchdog_timeout, settings.lease_ttl) if settings.watchdog_timeout else 0
    with event_loop_watched(limit):
        await _serve_until(stop, settings)


async def _serve_until(stop: asyncio.Event, settings: Settings) -> None:
    async with open_gateway(settings, stop) as gateway:
        log.info("ready", address=gateway.url, roles=",".join(sorted(settings.roles)))
        print(f"console: {gateway.url}/  (key: {settings.data_dir / 'key'})", flush=True)  # noqa: T201
        if settings.is_local or sys.stdout.isatty():  # the logs of other gateways have more readers
            _print_entry_link(gateway)
        # What the start created lives as long as the process: later collections need not look at it.
        gc.collect()
        gc.freeze()
        await stop.wait()
        log.info("gateway.stop_requested")


def _print_entry_link(gateway: RunningGateway) -> None:
    """Print a link that opens the console once; its code is behind the #, which browsers do not send."""
    code = gateway.entry_codes.issue()
    if code is not None:
        minutes = round(LIFETIME / 60)
        link = f"{gateway.url}/#/open/{code}"
        print(f"open the console: {link}  (once, within {minutes} minutes)", flush=True)  # noqa: T201


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A running gateway: its address and its services."""

    url: str
    services: Services
    entry_codes: EntryCodes


@asynccontextmanager
async def open_gateway(settings: Settings, stop: asyncio.Event) -> AsyncIterator[RunningGateway]:
    """Start every part, yield once the channels receive, and stop in order when `stop` is set."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(providers_inspected(settings.sandbox))
        backing = await stack.enter_async_context(open_backing_services(settings))
        components = await build_components(backing, stack)
        await stack.enter_async_context(_run_tasks(components.last_to_stop, asyncio.Event()))
        await stack.enter_async_context(_run_tasks(components.second_to_stop, asyncio.Event()))
        await stack.enter_async_context(_run_tasks(components.first_to_stop, stop))
        entry_codes = EntryCodes(settings.data_dir / "key")
        url = await stack.enter_async_context(
            listeners.open_listeners(
                backing,
                components.services,
                components.records,
                components.channel_supervisor,
                entry_codes,
            )
        )
        await _wait_until_receiving(components.channel_supervisor, stop)
        yield RunningGateway(url=url, services=components.services, entry_codes=entry_codes)


@asynccontextmanager
async def _run_tasks(tasks: tuple[BackgroundTask, ...], stop: asyncio.Event) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(task(stop))
        try:
            yield
        finally:
            stop.set()


async def _wait_until_receiving(channel_supervisor: ChannelSupervisor, stop: asyncio.Event) -> None:
    deadline = asyncio.get_running_loop().time() + RECEIVE_TIMEOUT
    now = asyncio.get_running_loop().time
    # Polling all channels together is simpler than an event for each.
    while channel_supervisor.starting() and not stop.is_set() and now() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
