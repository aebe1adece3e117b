"""The gateway's doors, as the web layer and the composition root see them."""

from __future__ import annotations

from dataclasses import dataclass

from delivery.events.port import Stream
from delivery.ledger import Ledger
from gateway.approvals import Approvals
from gateway.conductor import Conductor
from gateway.erasure import Erasure
from gateway.filing import Filing
from gateway.intake import Intake
from gateway.jobs import Jobs
from gateway.sandboxes import Sandboxes
from gateway.workbench import Workbench


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
