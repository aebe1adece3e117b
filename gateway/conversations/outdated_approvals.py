"""Approvals of calls that would now do something else: void, and requested again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from delivery.database.engine import Connection
from gateway.agents.port import PendingToolCall
from gateway.conversations.call_binding import CallTargets, covers, is_asked_too_often, unknown_target
from gateway.conversations.text_change import PresentText
from gateway.store.turns import turn_steps
from gateway.store.turns.approvals import Approval

CanRun = Callable[[PendingToolCall], bool]
"""Returns whether a call would run; one that is refused is not asked about again."""


def may_run(_call: PendingToolCall) -> bool:
    """Return True, for callers that have no tools."""
    return True


def pending_calls(approvals: Iterable[Approval]) -> list[PendingToolCall]:
    """Return the calls of approvals."""
    return [PendingToolCall(id=one.call, name=one.tool, args=one.args) for one in approvals]


async def list_unused(
    connection: Connection, approvals: Sequence[Approval], can_run: CanRun = may_run
) -> list[Approval]:
    """Return the approvals of calls that would run and did not begin yet, in the order of the calls."""
    return [
        approval
        for approval, call in zip(approvals, pending_calls(approvals), strict=True)
        if approval.state == "approved"
        and can_run(call)
        and await turn_steps.get(connection, approval.turn, approval.call) is None
    ]


def list_outdated(
    unused: Sequence[Approval],
    sandbox_fingerprint: str,
    targets: CallTargets = unknown_target,
    *,
    files: Mapping[str, PresentText] = MappingProxyType({}),
    asked: Iterable[Approval] = (),
) -> list[Approval]:
    """Return those of unused approvals whose call would now run elsewhere, or do something else.

    `files` are those that the calls would change. `asked` are all approvals of the turn: a call that was
    asked about too often is left out, and is refused when it is made. So is one whose file cannot be read.
    """
    earlier = list(asked)
    return [
        approval
        for approval, call in zip(unused, pending_calls(unused), strict=True)
        if not covers(approval, call, sandbox_fingerprint, targets(call), files.get(call.id))
        and not is_asked_too_often(earlier, call.id)
        and not ((file := files.get(call.id)) and file.problem)
    ]
