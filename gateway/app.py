"""The composition root: the place that names concrete classes and puts them together."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError

from delivery.broker import epochs
from delivery.chat.drafts import Drafts
from delivery.chat.rate_limit_store import StoredAllowances
from delivery.chat.sink import ChatSink
from delivery.database.engine import Unavailable
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Ledger
from delivery.errors import DeliveryError
from delivery.events.event import Event
from delivery.events.relay import Relay
from delivery.webhooks.egress import Rules
from gateway import delivery_workers, listeners
from gateway.accounts.budgets import Meter, metered
from gateway.accounts.key_rotation import reseal
from gateway.agents.port import Agent, Persona
from gateway.agents.registry import Performers, models_of, vendors_of
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.config.settings import Settings
from gateway.conversations.approvals import Approvals
from gateway.conversations.message_ids import whole_of
from gateway.conversations.submission import Intake
from gateway.environments.agent_files import Bundles
from gateway.environments.backends import Stands, open_stands
from gateway.environments.resolver import Workbench
from gateway.files.wiring import open_filing
from gateway.infra.backing_services import Ground, Running, lay
from gateway.infra.data_dir import DataDirBusy
from gateway.infra.embedded_nats import BrokerFailed
from gateway.infra.preflight import CannotListen, Unanswered, WrongKeys
from gateway.ingress.channel_supervisor import Switchboard
from gateway.ingress.commands import Commands
from gateway.ingress.receive import Accepting, Reception
from gateway.ingress.sandbox_commands import Errands
from gateway.ingress.status_reactions import Signs
from gateway.instrumentation import CountedLeases, CountedReception, CountedStream
from gateway.jobs.jobs import Jobs
from gateway.maintenance.deletion import Erasure
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.sandbox_control import Sandboxes
from gateway.maintenance.workspace_sync import looking
from gateway.observability import tracing
from gateway.observability.fault_points import UnknownFault
from gateway.observability.gauges import Depths, Vitals
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Book
from gateway.services import Core
from gateway.turns.worker import Conductor
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

SPEAKING = frozenset({Role.INGRESS, Role.TURNS, Role.DELIVERY})
"""Roles that need the channels open: turns fetch what people attached."""

RECEIVING_WITHIN = 3.0
"""Seconds that the start waits for channels to receive; slower ones are told of as degraded."""


def run(settings: Settings) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    expected = (DataDirBusy, BrokerFailed, DeliveryError, Unavailable, SandboxError, UnknownFault, OSError)
    try:
        _unwrapped(settings)
    except (Unanswered, WrongKeys, CannotListen) as error:
        print(f"dovecote: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1 if isinstance(error, CannotListen) else 2
    except (*expected, DBAPIError) as error:
        print(f"dovecote: {_first_line(error)}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1
    gc.freeze()  # everything is closed: the interpreter need not look for cycles among all modules at its end
    return 0


def _unwrapped(settings: Settings) -> None:
    """Serve; what went wrong alone is raised as it is, not in the groups of the tasks around it."""
    try:
        asyncio.run(_serve(settings))
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
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_gateway(settings, stop) as gateway:
        log.info("ready", address=gateway.url, roles=",".join(sorted(settings.roles)))
        print(f"console: {gateway.url}/  (key: {settings.data_dir / 'key'})", flush=True)  # noqa: T201
        await stop.wait()
        log.info("stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway: where it listens, and its doors."""

    url: str
    core: Core


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What has been put together: what stops `early`, what outlives that (`late`), and what outlives both."""

    core: Core
    book: Book
    switchboard: Switchboard
    early: tuple[Running, ...]
    late: tuple[Running, ...]
    last: tuple[Running, ...]


@asynccontextmanager
async def open_gateway(settings: Settings, stop: asyncio.Event) -> AsyncIterator[Gateway]:
    """Start every part, yield when the gateway really receives, and stop in order when `stop` is set."""
    async with AsyncExitStack() as stack:
        ground = await stack.enter_async_context(lay(settings))
        parts = await _assemble(ground, stack)
        await stack.enter_async_context(_running(parts.last, asyncio.Event()))
        await stack.enter_async_context(_running(parts.late, asyncio.Event()))
        await stack.enter_async_context(_running(parts.early, stop))
        url = await stack.enter_async_context(
            listeners.opened(ground, parts.core, parts.book, parts.switchboard)
        )
        await _until_receiving(parts.switchboard, stop)
        yield Gateway(url=url, core=parts.core)


@asynccontextmanager
async def _running(parts: tuple[Running, ...], stop: asyncio.Event) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part(stop))
        try:
            yield
        finally:
            stop.set()


async def _until_receiving(switchboard: Switchboard, stop: asyncio.Event) -> None:
    deadline = asyncio.get_running_loop().time() + RECEIVING_WITHIN
    # Many lines, looked at together: polling is simpler than an event for each.
    while switchboard.waiting() and not stop.is_set() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def _assemble(ground: Ground, stack: AsyncExitStack) -> _Parts:
    settings, checkpoint = ground.settings, ground.faults.checkpoint
    book = Book(
        ground.vault,
        Rules(allow=settings.egress_allow),
        most_memory_mb=settings.sandbox.max_memory_mb,
    )
    follower = tracing.follower(ground.database) if wants_traces() else None
    stream = CountedStream(ground.stream, ground.metrics, hear=follower.hear if follower else _unheard)
    relay = Relay(ground.database, stream, checkpoint)
    reception: list[Accepting] = []
    switchboard = Switchboard(
        database=ground.database,
        book=book,
        reception=lambda: reception[0],
        leases=CountedLeases(ground.leases, ground.metrics),
        receives=Role.INGRESS in settings.roles,
        public_url=settings.public_url,
        allowances=None if ground.alone_since else StoredAllowances(ground.database),
        lease_ttl=settings.lease_ttl,
    )
    ledger = Ledger(
        ground.database, relay, Router(switchboard.limits), ground.signals, checkpoint, whole=whole_of
    )
    drafts = Drafts(find=switchboard.find, database=ground.database)
    resident = await _ensure_defaults(ground, book)
    stands = await open_stands(ground, ledger, stack)
    performers = Performers(vendors_of(settings.vendors, settings.agent.base_url), stack)
    heard = follower.hear_request if follower else None
    meter = Meter(ground.database, ground.metrics, settings.prices, requested=heard)
    signs = Signs(ground.database, switchboard.react, switchboard.reacts)
    core = _core(
        ground,
        ledger,
        book,
        resident=resident,
        drafts=drafts,
        switchboard=switchboard,
        stands=stands,
        agents=metered(performers.find, meter),
        signs=signs,
    )
    errands = Errands(core.ledger, core.jobs)
    commands = Commands(switchboard.answer, errands, limit=settings.queue_limit)
    cancel = core.conductor.cancel_here
    taking = Reception(ledger, core.intake, core.approvals, commands, signs=signs, cancel=cancel)
    reception.append(CountedReception(taking, ground.metrics))
    early = [*_by_role(ground, core, switchboard), errands.run, signs.run]
    early.append(lambda _stop: performers.warm(models_of(settings)))
    early += await delivery_workers.deliverers(
        ground,
        ledger,
        relay=relay,
        switchboard=switchboard,
        chats=ChatSink(
            switchboard.find,
            claim=drafts.claim,
            claim_rest=drafts.claim_rest,
            attach=core.filing.sink.attach,
        ),
        stack=stack,
    )
    early.append(looking(ground, core.workbench.workspaces))
    if Role.REAPER in settings.roles:
        early += [_janitor(ground, relay, ledger).run, Depths(ground.database, ground.metrics).run]
        early += [core.erasure.run, core.filing.shelf.run]
        every = settings.sandbox.reap_interval
        early.append(lambda stop: core.sandboxes.look_after(stop, ground.leases, every=every))
    return _Parts(
        core=core,
        book=book,
        switchboard=switchboard,
        early=tuple(early),
        late=(
            ledger.run,
            relay.run,
            drafts.run,
            *([switchboard.run] if settings.roles & SPEAKING else []),
            _epochs(ground),
            _vitals(ground, switchboard).run,
        ),
        last=(follower.run,) if follower else (),
    )


def _core(
    ground: Ground,
    ledger: Ledger,
    book: Book,
    *,
    resident: str,
    drafts: Drafts,
    switchboard: Switchboard,
    stands: Stands,
    agents: Callable[[Persona], Agent],
    signs: Signs,
) -> Core:
    settings = ground.settings
    workbench = Workbench(
        ground.database,
        book,
        stands.pools,
        workspaces=stands.workspaces,
        resident=None if settings.allow_shared_host else resident,
        installation=stands.installation,
        lacking=stands.lacking,
    )
    filing = open_filing(ground, ledger, workbench, switchboard.find)
    jobs = Jobs(
        ledger,
        workbench,
        ground.vault,
        ground.faults.checkpoint,
        files=filing.outgoing,
        most_running=settings.job_limit,
    )
    conductor = Conductor(
        ledger=ledger,
        leases=CountedLeases(ground.leases, ground.metrics),
        signals=ground.signals,
        stream=ground.stream,
        workbench=workbench,
        jobs=jobs,
        incoming=filing.incoming,
        outgoing=filing.outgoing,
        bundles=Bundles(ground.database, workbench),
        agents=agents,
        runner=ground.runner,
        at_most=settings.turn_workers,
        lease_ttl=settings.lease_ttl,
        drain=settings.drain_timeout,
        showing=drafts.show,
        ended=signs.ended,
    )
    return Core(
        ledger=ledger,
        stream=ground.stream,
        intake=Intake(ledger, limit=settings.queue_limit, cancel=conductor.cancel_here),
        jobs=jobs,
        approvals=Approvals(ledger),
        conductor=conductor,
        workbench=workbench,
        filing=filing,
        erasure=Erasure(ground.database, ground.stream, jobs),
        sandboxes=Sandboxes(
            ground.database,
            stands.register,
            workbench,
            jobs,
            stands.pools,
            installation=stands.installation,
        ),
    )


async def _ensure_defaults(ground: Ground, book: Book) -> str:
    """Make what stands ready at the first start; returns the default account's id."""
    settings = ground.settings
    async with ground.database.begin() as connection:
        defaults = await ensure_defaults(
            connection,
            book,
            data=settings.data_dir,
            agent=settings.agent,
            provider=settings.sandbox.provider,
            channels=settings.channels,
        )
    if ground.vault.is_rotating:
        await reseal(ground.database, ground.vault)
    return defaults.account


def _by_role(ground: Ground, core: Core, switchboard: Switchboard) -> list[Running]:
    roles = ground.settings.roles
    parts: list[Running] = [switchboard.listen]
    if Role.TURNS in roles:
        parts.append(core.conductor.run)
    if Role.REAPER in roles:
        parts.append(lambda stop: core.jobs.reconcile(stop, every=ground.settings.reconcile_interval))
    return parts


def _epochs(ground: Ground) -> Running:
    return lambda stop: epochs.watch(ground.database, ground.link, ground.layout, ground.stream, stop=stop)


def _unheard(_event: Event) -> None:
    """Nothing is traced."""


def _vitals(ground: Ground, switchboard: Switchboard) -> Vitals:
    return Vitals(
        metrics=ground.metrics,
        database=ground.database,
        directory=ground.settings.data_dir,
        is_broker_up=lambda: ground.link.is_up,
        fill=lambda: ground.stream.fill,
        channels=switchboard.standings,
    )


def _janitor(ground: Ground, relay: Relay, ledger: Ledger) -> Janitor:
    return Janitor(
        ground.database,
        relay,
        ledger.signal,
        events_kept=timedelta(seconds=ground.settings.event_max_age),
    )
