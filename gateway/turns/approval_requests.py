"""The approvals that an attempt requests: bound to its sandboxes, and to what each call would do there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delivery.database.engine import Database
from delivery.deliveries.transactions import Transaction
from gateway.agents.port import PendingToolCall
from gateway.conversations import approvals, call_binding, outdated_approvals
from gateway.conversations.text_change import PresentText
from gateway.environments.environment import Environment
from gateway.environments.fingerprint import fingerprint_all
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.tools.executor import ToolExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsToApprove:
    """Calls as their questions show them, and by their ids the files that they would change."""

    calls: Sequence[PendingToolCall]
    files: Mapping[str, PresentText]


class ApprovalRequests:
    """Requests the approvals of one turn. Without environments and tools, questions show arguments alone."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._sandbox_fingerprint = ""
        self._targets: call_binding.CallTargets = call_binding.unknown_target
        self._preview_changes: call_binding.PreviewChanges = call_binding.no_previews
        self._can_run: outdated_approvals.CanRun = outdated_approvals.may_run
        self._changed_calls: Callable[[Sequence[PendingToolCall]], Sequence[PendingToolCall]] = tuple

    def bind_environments(self, environments: Mapping[str, Environment], default: Environment) -> None:
        """Set the environments that approvals are bound to and that their questions show."""
        self._sandbox_fingerprint = fingerprint_all(environments, default)
        self._targets = call_binding.call_targets(environments, default)

    def bind_tools(self, tools: ToolExecutor) -> None:
        """Set the tools, which find for each question what a call would change and where it would go."""
        self._preview_changes = tools.preview_changes
        self._changed_calls, self._can_run = tools.changed_calls, tools.can_run
        self._targets = call_binding.with_addresses(
            self._targets, tools.call_address, tools.call_definition, tools.call_works_somewhere
        )

    async def prepare(self, calls: Sequence[PendingToolCall]) -> CallsToApprove:
        """Return the calls that an agent wants to make, with the files that they would change."""
        shown = self._changed_calls(calls)
        return CallsToApprove(calls=shown, files=await self._preview_changes(shown))

    async def find_outdated(self, database: Database, decided: Sequence[Approval]) -> CallsToApprove:
        """Return the approved calls that would now do something else than people were asked about."""
        if not any(approval.state == "approved" for approval in decided):
            return CallsToApprove(calls=(), files={})
        async with database.read() as connection:
            unused = await outdated_approvals.list_unused(connection, decided, self._can_run)
        files = await self._preview_changes(outdated_approvals.pending_calls(unused), start=True)
        outdated = outdated_approvals.list_outdated(
            unused, self._sandbox_fingerprint, self._targets, files=files, asked=decided
        )
        return CallsToApprove(calls=outdated_approvals.pending_calls(outdated), files=files)

    async def request(self, tx: Transaction, asked: CallsToApprove, usage: Mapping[str, Any]) -> None:
        """Request an approval for each call; `usage` is what the turn has used so far."""
        fingerprint, targets = self._sandbox_fingerprint, self._targets
        await approvals.request(
            tx, self._turn, asked.calls, fingerprint, targets=targets, files=asked.files, usage=usage
        )
