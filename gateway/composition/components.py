"""All parts of a gateway: the foundation, the services on it, and the background tasks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

from delivery.broker import epochs
from delivery.fair_gate import FairGate
from gateway.accounts.budgets import with_metering
from gateway.accounts.key_rotation import reencrypt_at_start
from gateway.agents.registry import open_agents
from gateway.composition import delivery_workers
from gateway.composition.foundation import Foundation, build_foundation
from gateway.composition.wiring import build_services
from gateway.config.setting_types import Role
from gateway.conversations.submissions.full_queues import FullQueues, RefusalReports
from gateway.environments.backends import open_backends
from gateway.infra.backing_services import BackgroundTask, BackingServices
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.ingress.receive import UpdateHandler
from gateway.instrumentation import (
    InstrumentedUpdateHandler,
    disk_gauges,
    process_gauges,
)
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.retention import RetentionTask
from gateway.maintenance.snapshot_worker import SnapshotWorker
from gateway.maintenance.work_share import open_work_share
from gateway.maintenance.workspace_sync import workspace_sync_task
from gateway.observability.gauges import QueueGauges
from gateway.records.records import Records
from gateway.schedules.declared import ensure_defaults_and_schedules
from gateway.services import Services
from gateway.turns.budget_warnings import open_usage_meter

CHANNEL_ROLES = frozenset({Role.INGRESS, Role.TURNS, Role.DELIVERY})
"""Roles that open the channels. Turns need them to fetch attachments."""


SNAPSHOTS = 4
"""Snapshots of sandboxes that are packed and stored at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The parts of a gateway: its services, and its background tasks in the order in which they stop."""

    services: Services
    records: Records
    channel_supervisor: ChannelSupervisor
    first_to_stop: tuple[BackgroundTask, ...]
    second_to_stop: tuple[BackgroundTask, ...]
    last_to_stop: tuple[BackgroundTask, ...]


async def build_components(backing: BackingServices, stack: AsyncExitStack) -> Components:
    """Build all parts of a gateway; what they open is closed by `stack`, after their tasks have stopped."""
    settings = backing.settings
    base = build_foundation(backing)
    host_account = await _ensure_defaults(backing, base.records)
    backends = await open_backends(backing, base.records, base.transactions, stack)
    agents = await open_agents(settings)
    # Registered before any task is entered, so that the turns have stopped when the clients are closed.
    stack.push_async_callback(agents.aclose)
    on_model_request = base.span_recorder.on_model_request if base.span_recorder else None
    meter = open_usage_meter(base.transactions, backing.metrics, settings, on_model_request=on_model_request)
    services = build_services(
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
            # After the turns, because the last ones make snapshots due.
            SnapshotWorker(
                backends.pools, services.environment_resolver.request_of, FairGate(settings.pool(SNAPSHOTS))
            ).run,
            base.transactions.run,
            base.relay.run,
            base.drafts.run,
            base.sign_in_links.run,
            _epoch_watch(backing),
            process_gauges(backing, base.channel_supervisor.count_by_state).run,
            disk_gauges(backing).run,
        ),
        last_to_stop=(
            # After the drafts: their last calls, such as removing the line about a command, need the bots.
            *((base.channel_supervisor.run,) if settings.roles & CHANNEL_ROLES else ()),
            *((base.span_recorder.run,) if base.span_recorder else ()),
        ),
    )


def _build_ingress(base: Foundation, services: Services) -> tuple[BackgroundTask, ...]:
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
    base: Foundation, services: Services, stack: AsyncExitStack
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


def _maintenance_tasks(base: Foundation, services: Services) -> tuple[BackgroundTask, ...]:
    backing, share = base.backing, open_work_share(base.backing)
    return (
        share.run,
        Janitor(
            backing.database,
            base.relay,
            base.transactions.wake_soon,
            share=share,
            event_retention=timedelta(seconds=backing.settings.event_max_age),
            call_days=backing.settings.retention.client_calls,
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


async def _ensure_defaults(backing: BackingServices, records: Records) -> str:
    """Create the default records at the first start; returns the default account's id."""
    settings = backing.settings
    async with backing.database.begin() as connection:
        defaults = await ensure_defaults_and_schedules(connection, records, settings)
    if backing.vault.is_rotating:
        await reencrypt_at_start(backing.database, backing.vault)
    return defaults.account


def _tasks_for_roles(base: Foundation, services: Services) -> list[BackgroundTask]:
    settings = base.backing.settings
    tasks: list[BackgroundTask] = [base.channel_supervisor.drain_on_stop]
    if Role.TURNS in settings.roles:
        tasks += [services.turn_worker.run, services.background_calls.run, *base.turn_leases.tasks]
    if Role.REAPER in settings.roles:
        tasks.append(lambda stop: services.job_reconciler.run(stop, interval=settings.reconcile_interval))
    return tasks


def _epoch_watch(backing: BackingServices) -> BackgroundTask:
    return lambda stop: epochs.run(
        backing.database, backing.nats, backing.stream_config, backing.stream, stop=stop
    )
