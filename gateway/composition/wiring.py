"""The services of a gateway: concrete classes, connected with each other."""

from __future__ import annotations

from gateway.accounts import view_links
from gateway.accounts.budgets import GetMeteredAgent
from gateway.accounts.view_links import ViewLinks
from gateway.composition.foundation import Foundation
from gateway.conversations.approvals import Approvals
from gateway.conversations.submissions.submissions import Submissions
from gateway.environments.agent_files import AgentFiles
from gateway.environments.backends import Backends, job_replicas
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.wiring import FileServices, open_file_services
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway.ingress.commands.client_commands import ClientCommands
from gateway.ingress.commands.sandbox_commands import SandboxCommands
from gateway.jobs.jobs import Jobs
from gateway.jobs.reconciler import open_reconciler
from gateway.jobs.settlement import JobSettlement
from gateway.maintenance.deletion import ConversationDeletion
from gateway.maintenance.sandbox_control import open_sandbox_control
from gateway.memory.memories import open_memories
from gateway.records.agent import OperatorModel
from gateway.schedules.firing import ScheduleFiring
from gateway.schedules.schedules import Schedules, schedule_settings
from gateway.services import Services
from gateway.store.turn_state import RetryPeriods
from gateway.tools.background_calls import BackgroundCalls
from gateway.tools.call_runner import CallRunner
from gateway.tools.sources import open_background_calls, open_external_tools, open_own_tools
from gateway.turns.agent_runner import AgentRunner
from gateway.turns.worker import TurnWorker


def build_services(
    base: Foundation, *, host_account: str, backends: Backends, get_agent: GetMeteredAgent
) -> Services:
    """Build the services; `host_account` is the account whose agents may use the provider host."""
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
        conversation_deletion=ConversationDeletion(
            transactions, backing.stream, jobs, cancel=turn_worker.cancel_local
        ),
        sandbox_control=open_sandbox_control(backing.database, backends, resolver, settlement),
        schedule_firing=ScheduleFiring(transactions, submissions),
        schedule_settings=schedule_settings(settings),
        memories=open_memories(backing, file_services.quota),
        sign_in_links=base.sign_in_links,
    )


def _turn_worker(
    base: Foundation,
    resolver: EnvironmentResolver,
    jobs: Jobs,
    file_services: FileServices,
    *,
    get_agent: GetMeteredAgent,
    calls: BackgroundCalls,
) -> TurnWorker:
    backing, settings = base.backing, base.backing.settings
    agent_runner = AgentRunner(
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
    )
    return TurnWorker(
        transactions=base.transactions,
        leases=base.turn_leases.leases,
        wake_ups=backing.wake_ups,
        stream=backing.stream,
        agent_runner=agent_runner,
        file_collector=file_services.collector,
        worker_id=backing.worker_id,
        size=settings.pool(settings.turn_workers),
        lease_ttl=settings.lease_ttl,
        drain_timeout=settings.drain_timeout,
        retry_periods=RetryPeriods(message=settings.message_retry_period, job=settings.job_retry_period),
        draft_context=base.drafts.publish_while,
        on_turn_ended=base.status_reactions.on_turn_ended,
    )
