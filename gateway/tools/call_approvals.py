"""What people decided about the calls of a turn, and whether that is still what would run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from gateway.agents.port import PendingToolCall
from gateway.conversations.approval_question import CallTarget
from gateway.conversations.call_binding import (
    MAX_QUESTIONS,
    FindInTool,
    covers,
    is_asked_too_often,
)
from gateway.conversations.questions import ANSWERED
from gateway.conversations.text_change import PresentText
from gateway.environments.fingerprint import fingerprint_all
from gateway.store.turns import approvals
from gateway.store.turns.approvals import Approval
from gateway.tools.tool import ToolContext

FindFile = Callable[[PendingToolCall], Awaitable[PresentText | None]]
"""Returns the file that a call would change, as it is now."""


class Standing(StrEnum):
    """Whether a call may run."""

    FREE = "free"
    WAITS = "waits"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    """The file of an approved change cannot be compared with the one that the question showed."""


_REASONS = {
    Standing.WAITS: "a person must approve this call before it can run",
    Standing.REFUSED: (
        f"A person approved this call {MAX_QUESTIONS} times, and each time it had changed before it could "
        "run: its arguments, its tool, its sandbox or the file. It was not executed, and nobody is asked "
        "again. A rule (hook) that changes arguments differently each time can be the reason."
    ),
}


class CallApprovals:
    """Reads the approvals of one turn."""

    def __init__(
        self, context: ToolContext, *, address: FindInTool, definition: FindInTool, file: FindFile
    ) -> None:
        self._context = context
        self._address = address
        self._definition = definition
        self._file = file
        self._problems: dict[str, str] = {}

    async def standing(self, call: PendingToolCall) -> Standing:
        """Return whether a call that needs an approval may run, as it is now."""
        asked = [one for one in await self._list() if one.call == call.id]
        for one in asked:
            if one.state == ANSWERED or await self._is_approved(one, call):
                return Standing.FREE
        if call.id in self._problems:
            return Standing.UNREADABLE
        return Standing.REFUSED if is_asked_too_often(asked, call.id) else Standing.WAITS

    def reason(self, standing: Standing, call: str) -> str:
        """Return why a call may not run, for the model."""
        if standing is not Standing.UNREADABLE:
            return _REASONS[standing]
        return (
            "This approved change was not made, because the present file or note could not be compared with "
            f"the one that the person saw: {self._problems[call].rstrip('.')}."
        )

    async def answer(self, call: str) -> str | None:
        """Return a person's answer to the question that a call asks."""
        return next(
            (one.comment for one in await self._list() if one.call == call and one.state == ANSWERED), None
        )

    async def _list(self) -> Sequence[Approval]:
        async with self._context.jobs.read() as connection:
            return await approvals.list_for_turn(connection, self._context.turn.id)

    async def _is_approved(self, approval: Approval, call: PendingToolCall) -> bool:
        if approval.state != "approved":
            return False
        fingerprint = fingerprint_all(self._context.environments, self._context.environment)
        target = CallTarget(address=self._address(call), definition=self._definition(call))
        file = await self._file(call)
        self._problems.pop(call.id, None)
        if covers(approval, call, fingerprint, target, file):
            return True
        if file is not None and file.problem:
            self._problems[call.id] = file.problem
        return False
