"""The services of a running gateway, as the web layer and the composition root use them."""

from __future__ import annotations

from dataclasses import dataclass

from delivery.deliveries.transactions import Transactions
from delivery.events.port import EventStream
from gateway.conversations.approvals import Approvals
from gateway.conversations.submissions.submissions import Submissions
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.wiring import FileServices
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway.ingress.commands.client_commands import ClientCommands
from gateway.ingress.commands.sandbox_commands import SandboxCommands
from gateway.jobs.jobs import Jobs
from gateway.jobs.reconciler import JobReconciler
from gateway.jobs.settlement import JobSettlement
from gateway.maintenance.deletion import ConversationDeletion
from gateway.maintenance.sandbox_control import SandboxControl
from gateway.memory.memories import Memories
from gateway.schedules.firing import ScheduleFiring
from gateway.schedules.schedules import ScheduleSettings
from gateway.tools.background_calls import BackgroundCalls
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.turns.worker import TurnWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services through which turns, jobs, approvals and deliveries are changed."""

    transactions: Transactions
    stream: EventStream
    submissions: Submissions
    jobs: Jobs
    job_settlement: JobSettlement
    job_reconciler: JobReconciler
    background_calls: BackgroundCalls
    approvals: Approvals
    commands: ChatCommands
    sandbox_commands: SandboxCommands
    client_commands: ClientCommands
    turn_worker: TurnWorker
    environment_resolver: EnvironmentResolver
    file_services: FileServices
    conversation_deletion: ConversationDeletion
    sandbox_control: SandboxControl
    schedule_firing: ScheduleFiring
    schedule_settings: ScheduleSettings
    memories: Memories
    sign_in_links: SignInLinks
