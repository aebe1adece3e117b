"""The composition root: the module that names concrete classes and connects them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

from delivery.broker import epochs
from delivery.chat.drafts import Drafts
from delivery.chat.rate_limit_store import SqlTokenBuckets
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events.event import Event
from delivery.events.relay import Relay
from egress.policy import EgressPolicy
from gateway import delivery_workers
from gateway.accounts import view_links
from gateway.accounts.budgets import with_metering
from gateway.accounts.key_rotation import reencrypt_at_start
from gateway.accounts.view_links import ViewLinks
from gateway.agents.port import Agent, AgentSpec
from gateway.agents.registry import open_agents
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.conversations.approvals import Approvals
from gateway.conversations.full_queues import FullQueues, RefusalReports
from gateway.conversations.message_ids import full_text_path
from gateway.conversations.submission import Submissions
from gateway.environments.agent_files import AgentFiles
from gateway.environments.backends import Backends, job_replicas, open_backends
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.wiring import FileServices, open_file_services, speech_format
from gateway.infra.backing_services import BackgroundTask, BackingServices
from gateway.ingress.channel_context import UpdateAcceptor
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.ingress.client_commands import ClientCommands
from gateway.ingress.commands import ChatCommands
from gateway.ingress.interactions.status_reactions import StatusReactions
from gateway.ingress.receive import UpdateHandler
from gateway.ingress.sandbox_commands import SandboxCommands
from gateway.instrumentation import (
    InstrumentedLeases,
    InstrumentedStream,
    InstrumentedUpdateHandler,
    process_gauges,
)
from gateway.jobs.jobs import Jobs
from gateway.jobs.reconciler import open_reconciler
from gateway.jobs.settlement import JobSettlement
from gateway.maintenance.deletion import ConversationDeletion
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.retention import RetentionTask
from gateway.maintenance.sandbox_control import open_sandbox_control
from gateway.maintenance.work_share import open_work_share
from gateway.maintenance.workspace_sync import workspace_sync_task
from gateway.memory.memories import open_memories
from gateway.observability import tracing
from gateway.observability.gauges import QueueGauges
from gateway.observability.tracing.span_recorder import SpanRecorder
from gateway.records.agent import OperatorModel
from gateway.records.records import Records
from gateway.schedules.declared import ensure_defaults_and_schedules
from gateway.schedules.firing import ScheduleFiring
from gateway.schedules.schedules import Schedules, schedule_settings
from gateway.services import Services
from gateway.store.turn_state import RetryPeriods
from gateway.tools.background_calls import BackgroundCalls
from gateway.tools.call_runner import CallRunner
from gateway.tools.external.sources import open_background_calls, open_external_tools, open_own_tools
from gateway.tools.mcp.sign_in_links import SignInLinks
from gateway.tools.mcp.wiring import open_sign_in_links
from gateway.turns.budget_warnings import open_usage_meter
from gateway.turns.room_verbosity import RoomVerbosity
from gateway.turns.turn_end import EndedTurns
from gateway.turns.worker import TurnWorker

CHANNEL_ROLES = frozenset({Role.INGRESS, Role.TURNS, Role.DELIVERY})
"""Roles that open the channels. Turns need them to fetch attachments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The parts of a gateway: its services, and its background tasks in the order in which they stop."""

    services: Services
    records: Records
    channel_supervisor: ChannelSupervisor
    first_to_stop: tuple[BackgroundTask, ...]
    second_to_stop: tuple[BackgroundTask, ...]
    last_to_stop: tuple[BackgroundTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foundation:
    """The parts that all services are built on."""

    backing: BackingServices
    records: Records
    span_recorder: SpanRecorder | None
    relay: Relay
    acceptors: list[UpdateAcceptor]
    channel_supervisor: ChannelSupervisor
    transactions: Transactions
    drafts: Drafts
    status_reactions: StatusReactions
    sign_in_links: SignInLinks


async def build_components(backing: BackingServices, stack: AsyncExitStack) -> Components:
    """Build all parts of a gateway; what they open is closed by `stack`, after their tasks have stopped."""
    settings = backing.settings
    base = _build_foundation(backing)
    host_account = await _ensure_defaults(backing, base.records)
    backends = await open_backends(backing, base.records, base.transactions, stack)
    agents = await open_agents(settings)
    # Registered before any task is entered, so that the turns have stopped when the clients are closed.
    stack.push_async_callback(agents.aclose)
    on_model_request = base.span_recorder.on_model_request if base.span_recorder else None
    meter = open_usage_meter(base.transactions, backing.metrics, settings, on_model_request=on_model_request)
    services = _build_services(
        base, host_account=host_account, backends=backends, get_agent=with_metering(agents.get, meter)
    )
    ingress_tasks = _build_ingress(base, services)
    delivery_tasks = await _delivery_tasks(base, services, stack)
    return Components(
        services=services,
        records=base.records,
        channel_supervisor=base.channel_supervisor,
        first_to_stop=(
            *_tasks_for_roles(base, services),
            *ingress_tasks,
            *delivery_tasks,
            workspace_sync_task(backing, services.environment_resolver.workspaces),
            *(_maintenance_tasks(base, services) if Role.REAPER in settings.roles else ()),
        ),
        second_to_stop=(
            base.transactions.run,
            base.relay.run,
            base.drafts.run,
            base.sign_in_links.run,
            *([base.channel_supervisor.run] if settings.roles & CHANNEL_ROLES else []),
            _epoch_watch(backing),
            process_gauges(backing, base.channel_supervisor.count_by_state).run,
        ),
        last_to_stop=(base.span_recorder.run,) if base.span_recorder else (),
    )


def _build_foundation(backing: BackingServices) -> _Foundation:
    settings, checkpoint = backing.settings, backing.fault_points.checkpoint
    records = Records(
        backing.vault,
        EgressPolicy(allow=settings.egress_allow),
        ceilings=settings.sandbox.ceilings,
    )
    span_recorder = tracing.open_span_recorder(backing.database) if wants_traces() else None
    stream = InstrumentedStream(
        backing.stream, backing.metrics, on_event=span_recorder.on_event if span_recorder else _ignore_event
    )
    relay = Relay(backing.database, stream, checkpoint, announce=backing.announce)
    acceptors: list[UpdateAcceptor] = []
    channels = _channel_supervisor(backing, records, acceptors)
    verbosity = RoomVerbosity(backing.database).get
    transactions = Transactions(
        backing.database,
        relay,
        Router(
            channels.limits,
            max_messages=backing.settings.files.messages_before_file,
            speech=speech_format(backing.settings.speech),
        ),
        backing.wake_ups,
        checkpoint,
        full_text_url=full_text_path,
    )
    return _Foundation(
        backing=backing,
        records=records,
        span_recorder=span_recorder,
        relay=relay,
        acceptors=acceptors,
        channel_supervisor=channels,
        transactions=transactions,
        drafts=Drafts(
            get_bot=channels.get_bot,
            database=backing.database,
            get_verbosity=verbosity,
            get_ended_turns=EndedTurns(backing.database).get,
        ),
        status_reactions=StatusReactions(
            backing.database, channels.react, channels.has_reactions, channels.has_single_reactions
        ),
        sign_in_links=open_sign_in_links(backing, transactions, records),
    )


def _channel_supervisor(
    backing: BackingServices, records: Records, acceptors: list[UpdateAcceptor]
) -> ChannelSupervisor:
    settings = backing.settings
    return ChannelSupervisor(
        database=backing.database,
        records=records,
        get_acceptor=lambda: acceptors[0],
        leases=InstrumentedLeases(backing.leases, backing.metrics),
        may_receive=Role.INGRESS in settings.roles,
        public_url=settings.public_url,
        token_buckets=None if backing.sole_process_since else SqlTokenBuckets(backing.database),
        replica=backing.presence.instance if backing.presence is not None else None,
        lease_ttl=settings.lease_ttl,
    )


def _build_ingress(base: _Foundation, services: Services) -> tuple[BackgroundTask, ...]:
    """Connect the channels to the services; returns the tasks of that."""
    full_queues = FullQueues()
    handler = UpdateHandler(
        services.transactions,
        services.submissions,
        services.approvals,
        services.commands,
        status_reactions=base.status_reactions,
        full_queues=full_queues,
        cancel=services.turn_worker.cancel_local,
    )
    base.acceptors.append(InstrumentedUpdateHandler(handler, base.backing.metrics))
    refusal_reports = RefusalReports(services.transactions, full_queues)
    return services.sandbox_commands.run, base.status_reactions.run, refusal_reports.run


async def _delivery_tasks(
    base: _Foundation, services: Services, stack: AsyncExitStack
) -> list[BackgroundTask]:
    return await delivery_workers.delivery_workers(
        base.backing,
        base.transactions,
        relay=base.relay,
        channel_supervisor=base.channel_supervisor,
        drafts=base.drafts,
        attach=services.file_services.sink.attach,
        stack=stack,
    )


def _maintenance_tasks(base: _Foundation, services: Services) -> tuple[BackgroundTask, ...]:
    backing, share = base.backing, open_work_share(base.backing)
    return (
        share.run,
        Janitor(
            backing.database,
            base.relay,
            base.transactions.wake_soon,
            share=share,
            event_retention=timedelta(seconds=backing.settings.event_max_age),
        ).run,
        services.schedule_firing.run,
        RetentionTask(backing.database, backing.settings.retention, share=share).run,
        QueueGauges(backing.database, backing.metrics).run,
        services.conversation_deletion.run,
        services.file_services.file_store.run,
        lambda stop: services.sandbox_control.run_reaper(
            stop, backing.leases, interval=backing.settings.sandbox.reap_interval
        ),
    )


def _build_services(
    base: _Foundation, *, host_account: str, backends: Backends, get_agent: Callable[[AgentSpec], Agent]
) -> Services:
    backing, transactions, settings = base.backing, base.transactions, base.backing.settings
    resolver = EnvironmentResolver(
        backing.database,
        base.records,
        backends.pools,
        workspaces=backends.workspaces,
        host_account=None if settings.allow_shared_host else host_account,
        installation=backends.installation,
        missing_runtimes=backends.missing_runtimes,
        job_replicas=job_replicas(backing),
    )
    resolver.view_links = ViewLinks(
        keys=backing.vault.keys_for(view_links.PURPOSE), public_url=settings.public_url
    )
    file_services = open_file_services(backing, transactions, resolver, base.channel_supervisor.get_bot)
    settlement = JobSettlement(transactions, resolver, file_collector=file_services.collector)
    jobs = Jobs(
        transactions,
        resolver,
        backing.vault,
        backing.fault_points.checkpoint,
        settlement=settlement,
        max_running=settings.job_limit,
    )
    own_tools = open_own_tools(base.records, base.sign_in_links)
    runner = CallRunner(backing.database, resolver, jobs, file_services.collector, own_tools)
    calls = open_background_calls(runner, backing, transactions, settlement)
    turn_worker = _turn_worker(base, resolver, jobs, file_services, get_agent=get_agent, calls=calls)
    if backing.has_own_leases:
        transactions.claim_turns(turn_worker.immediate_turns())
    sandbox_commands = SandboxCommands(transactions, jobs)
    commands = ChatCommands(
        base.channel_supervisor.reply_privately,
        sandbox_commands,
        reply_confidentially=base.channel_supervisor.reply_confidentially,
        limit=settings.queue_limit,
        schedules=schedule_settings(settings),
        operator_model=OperatorModel.from_settings(settings.agent),
        sign_in_links=base.sign_in_links,
    )
    submissions = Submissions(transactions, limit=settings.queue_limit, cancel=turn_worker.cancel_local)
    return Services(
        transactions=transactions,
        stream=backing.stream,
        submissions=submissions,
        jobs=jobs,
        job_settlement=settlement,
        job_reconciler=open_reconciler(transactions, resolver, settlement, after=settings.job_progress_after),
        background_calls=calls,
        approvals=Approvals(transactions),
        commands=commands,
        sandbox_commands=sandbox_commands,
        client_commands=ClientCommands(transactions, commands, turn_worker.cancel_local),
        turn_worker=turn_worker,
        environment_resolver=resolver,
        file_services=file_services,
        conversation_deletion=ConversationDeletion(backing.database, backing.stream, jobs),
        sandbox_control=open_sandbox_control(backing.database, backends, resolver, settlement),
        schedule_firing=ScheduleFiring(transactions, submissions),
        schedule_settings=schedule_settings(settings),
        memories=open_memories(backing, file_services.quota),
        sign_in_links=base.sign_in_links,
    )


def _turn_worker(
    base: _Foundation,
    resolver: EnvironmentResolver,
    jobs: Jobs,
    file_services: FileServices,
    *,
    get_agent: Callable[[AgentSpec], Agent],
    calls: BackgroundCalls,
) -> TurnWorker:
    backing, settings = base.backing, base.backing.settings
    return TurnWorker(
        transactions=base.transactions,
        leases=InstrumentedLeases(backing.leases, backing.metrics),
        wake_ups=backing.wake_ups,
        stream=backing.stream,
        environment_resolver=resolver,
        jobs=jobs,
        attachments=file_services.attachments,
        file_collector=file_services.collector,
        agent_files=AgentFiles(backing.database, resolver),
        schedules=Schedules(backing.database, schedule_settings(settings)),
        memories=open_memories(backing, file_services.quota),
        open_external_tools=open_external_tools(base.transactions, calls),
        get_agent=get_agent,
        operator_model=OperatorModel.from_settings(settings.agent),
        worker_id=backing.worker_id,
        size=settings.pool(settings.turn_workers),
        lease_ttl=settings.lease_ttl,
        drain_timeout=settings.drain_timeout,
        retry_periods=RetryPeriods(message=settings.message_retry_period, job=settings.job_retry_period),
        draft_context=base.drafts.publish_while,
        on_turn_ended=base.status_reactions.on_turn_ended,
    )


async def _ensure_defaults(backing: BackingServices, records: Records) -> str:
    """Create the default records at the first start; returns the default account's id."""
    settings = backing.settings
    async with backing.database.begin() as connection:
        defaults = await ensure_defaults_and_schedules(connection, records, settings)
    if backing.vault.is_rotating:
        await reencrypt_at_start(backing.database, backing.vault)
    return defaults.account


def _tasks_for_roles(base: _Foundation, services: Services) -> list[BackgroundTask]:
    settings = base.backing.settings
    tasks: list[BackgroundTask] = [base.channel_supervisor.drain_on_stop]
    if Role.TURNS in settings.roles:
        tasks += [services.turn_worker.run, services.background_calls.run]
    if Role.REAPER in settings.roles:
        tasks.append(lambda stop: services.job_reconciler.run(stop, interval=settings.reconcile_interval))
    return tasks


def _epoch_watch(backing: BackingServices) -> BackgroundTask:
    return lambda stop: epochs.run(
        backing.database, backing.nats, backing.stream_config, backing.stream, stop=stop
    )


def _ignore_event(_event: Event) -> None:
    """Do nothing: tracing is off."""
