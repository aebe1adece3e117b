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
from delivery.chat.rate_limit_store import SqlTokenBuckets
from delivery.chat.sink import ChatSink
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError
from delivery.events.event import Event
from delivery.events.relay import Relay
from delivery.webhooks.egress import EgressPolicy
from gateway import delivery_workers, listeners
from gateway.accounts.budgets import UsageMeter, with_metering
from gateway.accounts.key_rotation import reencrypt_all
from gateway.agents.port import Agent, AgentSpec
from gateway.agents.registry import AgentRegistry, default_models, model_vendors
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.config.settings import Settings
from gateway.conversations.approvals import Approvals
from gateway.conversations.message_ids import full_text_path
from gateway.conversations.submission import Submissions
from gateway.environments.agent_files import AgentFiles
from gateway.environments.backends import Backends, open_backends
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.wiring import open_file_services
from gateway.infra.backing_services import BackgroundTask, BackingServices, open_backing_services
from gateway.infra.data_dir import DataDirBusy
from gateway.infra.embedded_nats import EmbeddedNatsFailed
from gateway.infra.preflight import DependencyUnavailable, ListenFailed, SecretKeyMismatch
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.ingress.commands import ChatCommands
from gateway.ingress.receive import UpdateAcceptor, UpdateHandler
from gateway.ingress.sandbox_commands import SandboxCommands
from gateway.ingress.status_reactions import StatusReactions
from gateway.instrumentation import InstrumentedLeases, InstrumentedStream, InstrumentedUpdateHandler
from gateway.jobs.jobs import Jobs
from gateway.maintenance.deletion import ConversationDeletion
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.sandbox_control import SandboxControl
from gateway.maintenance.workspace_sync import workspace_sync_task
from gateway.observability import tracing
from gateway.observability.fault_points import UnknownFaultPoint
from gateway.observability.gauges import ProcessGauges, QueueGauges
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Records
from gateway.services import Services
from gateway.turns.worker import TurnWorker
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

CHANNEL_ROLES = frozenset({Role.INGRESS, Role.TURNS, Role.DELIVERY})
"""Roles that need the channels open: turns fetch what people attached."""

RECEIVE_TIMEOUT = 3.0
"""Seconds that the start waits for channels to receive; slower ones are told of as degraded."""


def run(settings: Settings) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    expected = (
        DataDirBusy,
        EmbeddedNatsFailed,
        DeliveryError,
        DatabaseUnavailable,
        SandboxError,
        UnknownFaultPoint,
        OSError,
    )
    try:
        _serve_unwrapped(settings)
    except (DependencyUnavailable, SecretKeyMismatch, ListenFailed) as error:
        print(f"dovecote: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1 if isinstance(error, ListenFailed) else 2
    except (*expected, DBAPIError) as error:
        print(f"dovecote: {_first_line(error)}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1
    gc.freeze()  # everything is closed: the interpreter need not look for cycles among all modules at its end
    return 0


def _serve_unwrapped(settings: Settings) -> None:
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
        log.info("gateway.stop_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A running gateway: where it listens, and its doors."""

    url: str
    services: Services


@dataclass(frozen=True, slots=True, kw_only=True)
class _Components:
    """What has been put together: what stops `early`, what outlives that (`late`), and what outlives both."""

    services: Services
    records: Records
    channel_supervisor: ChannelSupervisor
    first_to_stop: tuple[BackgroundTask, ...]
    second_to_stop: tuple[BackgroundTask, ...]
    last_to_stop: tuple[BackgroundTask, ...]


@asynccontextmanager
async def open_gateway(settings: Settings, stop: asyncio.Event) -> AsyncIterator[RunningGateway]:
    """Start every part, yield when the gateway really receives, and stop in order when `stop` is set."""
    async with AsyncExitStack() as stack:
        ground = await stack.enter_async_context(open_backing_services(settings))
        parts = await _build_components(ground, stack)
        await stack.enter_async_context(_run_tasks(parts.last_to_stop, asyncio.Event()))
        await stack.enter_async_context(_run_tasks(parts.second_to_stop, asyncio.Event()))
        await stack.enter_async_context(_run_tasks(parts.first_to_stop, stop))
        url = await stack.enter_async_context(
            listeners.open_listeners(ground, parts.services, parts.records, parts.channel_supervisor)
        )
        await _wait_until_receiving(parts.channel_supervisor, stop)
        yield RunningGateway(url=url, services=parts.services)


@asynccontextmanager
async def _run_tasks(tasks: tuple[BackgroundTask, ...], stop: asyncio.Event) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for part in tasks:
            group.create_task(part(stop))
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


async def _build_components(backing: BackingServices, stack: AsyncExitStack) -> _Components:
    settings, checkpoint = backing.settings, backing.fault_points.checkpoint
    book = Records(
        backing.vault,
        EgressPolicy(allow=settings.egress_allow),
        max_memory_mb=settings.sandbox.max_memory_mb,
    )
    follower = tracing.open_span_recorder(backing.database) if wants_traces() else None
    stream = InstrumentedStream(
        backing.stream, backing.metrics, on_event=follower.on_event if follower else _ignore_event
    )
    relay = Relay(backing.database, stream, checkpoint)
    reception: list[UpdateAcceptor] = []
    switchboard = ChannelSupervisor(
        database=backing.database,
        records=book,
        get_acceptor=lambda: reception[0],
        leases=InstrumentedLeases(backing.leases, backing.metrics),
        may_receive=Role.INGRESS in settings.roles,
        public_url=settings.public_url,
        token_buckets=None if backing.sole_process_since else SqlTokenBuckets(backing.database),
        lease_ttl=settings.lease_ttl,
    )
    ledger = Transactions(
        backing.database,
        relay,
        Router(switchboard.limits),
        backing.wake_ups,
        checkpoint,
        full_text_url=full_text_path,
    )
    drafts = Drafts(get_bot=switchboard.get_bot, database=backing.database)
    resident = await _ensure_defaults(backing, book)
    stands = await open_backends(backing, ledger, stack)
    performers = AgentRegistry(model_vendors(settings.vendors, settings.agent.base_url))
    stack.push_async_callback(performers.aclose)  # before any task is entered: tasks that use it stop first
    heard = follower.on_model_request if follower else None
    meter = UsageMeter(backing.database, backing.metrics, settings.prices, on_model_request=heard)
    signs = StatusReactions(backing.database, switchboard.react, switchboard.has_reactions)
    core = _build_services(
        backing,
        ledger,
        book,
        host_account=resident,
        drafts=drafts,
        channel_supervisor=switchboard,
        backends=stands,
        get_agent=with_metering(performers.get, meter),
        status_reactions=signs,
    )
    errands = SandboxCommands(core.transactions, core.jobs)
    commands = ChatCommands(switchboard.reply_privately, errands, limit=settings.queue_limit)
    cancel = core.turn_worker.cancel_local
    taking = UpdateHandler(
        ledger, core.submissions, core.approvals, commands, status_reactions=signs, cancel=cancel
    )
    reception.append(InstrumentedUpdateHandler(taking, backing.metrics))
    early = [*_tasks_for_roles(backing, core, switchboard), errands.run, signs.run]
    early.append(lambda _stop: performers.preload(default_models(settings)))
    early += await delivery_workers.delivery_workers(
        backing,
        ledger,
        relay=relay,
        channel_supervisor=switchboard,
        chat_sink=ChatSink(
            switchboard.get_bot,
            claim=drafts.claim,
            claim_unfinished=drafts.claim_unfinished,
            attach=core.file_services.sink.attach,
        ),
        stack=stack,
    )
    early.append(workspace_sync_task(backing, core.environment_resolver.workspaces))
    if Role.REAPER in settings.roles:
        early += [_janitor(backing, relay, ledger).run, QueueGauges(backing.database, backing.metrics).run]
        early += [core.conversation_deletion.run, core.file_services.file_store.run]
        every = settings.sandbox.reap_interval
        early.append(lambda stop: core.sandbox_control.run_reaper(stop, backing.leases, interval=every))
    return _Components(
        services=core,
        records=book,
        channel_supervisor=switchboard,
        first_to_stop=tuple(early),
        second_to_stop=(
            ledger.run,
            relay.run,
            drafts.run,
            *([switchboard.run] if settings.roles & CHANNEL_ROLES else []),
            _epoch_watch(backing),
            _process_gauges(backing, switchboard).run,
        ),
        last_to_stop=(follower.run,) if follower else (),
    )


def _build_services(
    backing: BackingServices,
    transactions: Transactions,
    records: Records,
    *,
    host_account: str,
    drafts: Drafts,
    channel_supervisor: ChannelSupervisor,
    backends: Backends,
    get_agent: Callable[[AgentSpec], Agent],
    status_reactions: StatusReactions,
) -> Services:
    settings = backing.settings
    workbench = EnvironmentResolver(
        backing.database,
        records,
        backends.pools,
        workspaces=backends.workspaces,
        host_account=None if settings.allow_shared_host else host_account,
        installation=backends.installation,
        missing_runtimes=backends.missing_runtimes,
    )
    filing = open_file_services(backing, transactions, workbench, channel_supervisor.get_bot)
    jobs = Jobs(
        transactions,
        workbench,
        backing.vault,
        backing.fault_points.checkpoint,
        file_collector=filing.collector,
        max_running=settings.job_limit,
    )
    conductor = TurnWorker(
        transactions=transactions,
        leases=InstrumentedLeases(backing.leases, backing.metrics),
        wake_ups=backing.wake_ups,
        stream=backing.stream,
        environment_resolver=workbench,
        jobs=jobs,
        attachments=filing.attachments,
        file_collector=filing.collector,
        agent_files=AgentFiles(backing.database, workbench),
        get_agent=get_agent,
        worker_id=backing.worker_id,
        max_turns=settings.turn_workers,
        lease_ttl=settings.lease_ttl,
        drain_timeout=settings.drain_timeout,
        draft_context=drafts.publish_while,
        on_turn_ended=status_reactions.on_turn_ended,
    )
    return Services(
        transactions=transactions,
        stream=backing.stream,
        submissions=Submissions(transactions, limit=settings.queue_limit, cancel=conductor.cancel_local),
        jobs=jobs,
        approvals=Approvals(transactions),
        turn_worker=conductor,
        environment_resolver=workbench,
        file_services=filing,
        conversation_deletion=ConversationDeletion(backing.database, backing.stream, jobs),
        sandbox_control=SandboxControl(
            backing.database,
            backends.reservations,
            workbench,
            jobs,
            backends.pools,
            installation=backends.installation,
        ),
    )


async def _ensure_defaults(backing: BackingServices, records: Records) -> str:
    """Make what stands ready at the first start; returns the default account's id."""
    settings = backing.settings
    async with backing.database.begin() as connection:
        defaults = await ensure_defaults(
            connection,
            records,
            data=settings.data_dir,
            agent=settings.agent,
            provider=settings.sandbox.provider,
            channels=settings.channels,
        )
    if backing.vault.is_rotating:
        await reencrypt_all(backing.database, backing.vault)
    return defaults.account


def _tasks_for_roles(
    backing: BackingServices, services: Services, channel_supervisor: ChannelSupervisor
) -> list[BackgroundTask]:
    roles = backing.settings.roles
    parts: list[BackgroundTask] = [channel_supervisor.drain_on_stop]
    if Role.TURNS in roles:
        parts.append(services.turn_worker.run)
    if Role.REAPER in roles:
        parts.append(lambda stop: services.jobs.reconcile(stop, interval=backing.settings.reconcile_interval))
    return parts


def _epoch_watch(backing: BackingServices) -> BackgroundTask:
    return lambda stop: epochs.run(
        backing.database, backing.nats, backing.stream_config, backing.stream, stop=stop
    )


def _ignore_event(_event: Event) -> None:
    """Nothing is traced."""


def _process_gauges(backing: BackingServices, channel_supervisor: ChannelSupervisor) -> ProcessGauges:
    return ProcessGauges(
        metrics=backing.metrics,
        database=backing.database,
        directory=backing.settings.data_dir,
        is_broker_up=lambda: backing.nats.is_connected,
        stream_fill_ratio=lambda: backing.stream.fill,
        count_channels=channel_supervisor.count_by_state,
    )


def _janitor(backing: BackingServices, relay: Relay, transactions: Transactions) -> Janitor:
    return Janitor(
        backing.database,
        relay,
        transactions.wake_soon,
        event_retention=timedelta(seconds=backing.settings.event_max_age),
    )
