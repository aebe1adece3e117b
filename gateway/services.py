"""The gateway's doors, as the web layer and the composition root see them."""

from __future__ import annotations

from dataclasses import dataclass

from delivery.deliveries.transactions import Ledger
from delivery.events.port import Stream
from gateway.conversations.approvals import Approvals
from gateway.conversations.submission import Intake
from gateway.environments.resolver import Workbench
from gateway.files.wiring import Filing
from gateway.jobs.jobs import Jobs
from gateway.maintenance.deletion import Erasure
from gateway.maintenance.sandbox_control import Sandboxes
from gateway.turns.worker import Conductor


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Everything that changes turns, jobs, approvals and deliveries goes through one of these."""

    ledger: Ledger
    stream: Stream
    intake: Intake
    jobs: Jobs
    approvals: Approvals
    conductor: Conductor
    workbench: Workbench
    filing: Filing
    erasure: Erasure
    sandboxes: Sandboxes
