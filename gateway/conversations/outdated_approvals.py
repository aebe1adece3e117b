"""Approvals of calls whose sandbox or address was changed since: void, and requested again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from delivery.deliveries.transactions import Transaction
from gateway.agents.port import PendingToolCall
from gateway.conversations.approvals import CallTargets, call_digest, request, unknown_target
from gateway.conversations.file_change import FileChange
from gateway.store.turns import turn_steps
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn

SANDBOX_CHANGED = (
    "The sandbox was changed, or the address of the tool, after this approval, so it is needed again."
)

CanRun = Callable[[PendingToolCall], bool]
"""Returns whether a call would run; one that is refused is not asked about again."""


def may_run(_call: PendingToolCall) -> bool:
    """Return True, for callers that have no tools."""
    return True


def pending_calls(approvals: Iterable[Approval]) -> list[PendingToolCall]:
    """Return the calls of approvals."""
    return [PendingToolCall(id=one.call, name=one.tool, args=one.args) for one in approvals]


async def list_outdated(
    tx: Transaction,
    approvals: Sequence[Approval],
    sandbox_fingerprint: str,
    targets: CallTargets = unknown_target,
    can_run: CanRun = may_run,
) -> list[Approval]:
    """Return approvals of calls that did not run yet and would now run, or send a request, elsewhere."""
    return [
        approval
        for approval, call in zip(approvals, pending_calls(approvals), strict=True)
        if approval.state == "approved"
        and can_run(call)
        and approval.digest
        != call_digest(approval.tool, approval.args, sandbox_fingerprint, targets(call).address)
        and await turn_steps.get(tx.connection, approval.turn, approval.call) is None
    ]


async def request_again(
    tx: Transaction,
    turn: Turn,
    outdated: Iterable[Approval],
    sandbox_fingerprint: str,
    *,
    targets: CallTargets = unknown_target,
    changes: Mapping[str, FileChange] = MappingProxyType({}),
) -> None:
    """Void approvals and request new ones for the same calls."""
    await request(
        tx,
        turn,
        pending_calls(outdated),
        sandbox_fingerprint,
        targets=targets,
        changes=changes,
        reason=SANDBOX_CHANGED,
    )
