"""Approvals: tool calls that wait for a person's decision; the first decision wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.agents.client_request import ClientRequest
from gateway.agents.port import ApprovalDecision, PendingToolCall
from gateway.conversations.approval_question import CallTarget, render_call
from gateway.conversations.approver_rules import DecisionContext, may_decide, refusal_text, same_room
from gateway.conversations.call_binding import CallTargets, covers, digest_of, unknown_target
from gateway.conversations.message_ids import approval_event_id
from gateway.conversations.questions import (
    ANSWERED,
    MAX_ANSWER,
    InvalidAnswer,
    client_calls,
    is_answered_so,
    is_question,
    parse_answer,
    render_request,
    requested_event,
)
from gateway.conversations.text_change import PresentText
from gateway.store.accounts import accounts
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn

MAX_DECIDER = 60
"""Characters of the name of a person who decided, for the model."""

CALL_CHANGED = "The call was changed after this approval, so it is needed again."


class AlreadyDecided(Exception):
    """Another decision was recorded first, or the approval is closed; `decided` has its state."""

    def __init__(self, decided: Approval) -> None:
        super().__init__(_describe(decided))
        self.decided = decided


def _describe(decided: Approval) -> str:
    if decided.state == "void":
        return "the call or its sandbox was changed, and a new approval was requested"
    if decided.state == "expired":
        return "the turn that requested it has ended"
    return f"already {decided.state} by {decided.decided_name or decided.decided_by or 'an unknown person'}"


class ApprovalNotFound(Exception):
    """There is no such approval in this account."""


class NotAllowed(Exception):
    """The rule of the channel does not let this person decide."""


async def request(
    tx: Transaction,
    turn: Turn,
    calls: Iterable[PendingToolCall],
    sandbox_fingerprint: str,
    *,
    targets: CallTargets = unknown_target,
    files: Mapping[str, PresentText] = MappingProxyType({}),
    usage: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Create an approval for each of these calls and emit `approval.requested` with its question.

    An approval of a call that has changed since becomes void. `files` are those that calls would change, by
    the ids of the calls. `usage` is the turn's. The ids of the approvals have the order of the calls.
    """
    earlier = {
        one.call: one for one in await store.list_for_turn(tx.connection, turn.id) if one.state != "void"
    }
    new = [call for call in calls if call.id not in earlier or earlier[call.id].state == "approved"]
    asked = client_calls(new, ClientRequest.parse(turn.request).tools_by_name)
    for call, new_approval in zip(asked, sorted(new_id("apr") for _ in asked), strict=True):
        target, file = targets(call), files.get(call.id)
        approved = earlier.get(call.id)
        if approved is not None:
            if covers(approved, call, sandbox_fingerprint, target, file):
                continue
            await store.void(tx.connection, approved.id)
        approval = Approval(
            id=new_approval,
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            call=call.id,
            tool=call.name,
            args=call.args,
            command=render_request(call, target, file.change if file is not None else None),
            digest=digest_of(call, sandbox_fingerprint, target, file),
            usage=usage,
            created_at=utc_now(),
        )
        await store.insert_approval(tx.connection, approval)
        tx.emit(requested_event(approval, _why_again(approved, call, target, file)))


def _why_again(
    approved: Approval | None, call: PendingToolCall, target: CallTarget, file: PresentText | None
) -> str:
    """Return why an approval is needed again; empty for one that was not given yet."""
    if approved is None:
        return ""
    if (approved.tool, approved.args) != (call.name, call.args):
        return CALL_CHANGED
    further = f"the {file.what} or " if file is not None else ""
    if target.address is not None or target.definition is not None:
        further = "the tool's address, description or arguments, or "
    return f"After this approval {further}the sandbox was changed, so it is needed again."


def decisions_by_call(approvals: Iterable[Approval]) -> dict[str, ApprovalDecision]:
    """Return people's decisions by call id; empty while one is pending."""
    found = [approval for approval in approvals if approval.state != "void"]
    if any(approval.state == "pending" for approval in found):
        return {}
    return {
        approval.call: ApprovalDecision(
            approved=approval.state in {"approved", ANSWERED},
            by=_decider(approval),
            comment=approval.comment or "",
        )
        for approval in found
    }


def _decider(approval: Approval) -> str:
    """Return who decided, by name, on one line; a name is the person's own words."""
    name = " ".join((approval.decided_name or "").split())[:MAX_DECIDER]
    return name or approval.decided_by or ""


class Approvals:
    """Records the decisions of people, from buttons, reactions, commands and the API."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def decide(
        self,
        account: str,
        approval_id: str,
        *,
        approved: bool,
        by: str,
        name: str = "",
        comment: str = "",
        decision_context: DecisionContext | None = None,
    ) -> Approval:
        """Decide in a transaction of its own; repeating a decision is allowed. Raises like `decide_in`."""
        async with self._transactions.begin("approval.decide") as tx:
            return await decide_in(
                tx,
                account,
                approval_id,
                approved=approved,
                by=by,
                name=name,
                comment=comment,
                decision_context=decision_context,
            )

    async def answer(
        self,
        account: str,
        approval_id: str,
        given: str | Mapping[str, str],
        *,
        by: str,
        name: str = "",
        files: Sequence[Mapping[str, Any]] = (),
        decision_context: DecisionContext | None = None,
    ) -> Approval:
        """Answer a question in a transaction of its own; raises like `answer_in`."""
        how: dict[str, Any] = {"by": by, "name": name, "files": files, "decision_context": decision_context}
        async with self._transactions.begin("approval.decide") as tx:
            return await answer_in(tx, account, approval_id, given, **how)


async def decide_in(
    tx: Transaction,
    account: str,
    approval_id: str,
    *,
    approved: bool,
    by: str,
    name: str = "",
    comment: str = "",
    decision_context: DecisionContext | None = None,
) -> Approval:
    """Decide in the caller's transaction; `name` is a display name, by default that of the API key `by`.

    With a `decision_context` only approvals of that chat can be decided, by its channel's rule. Without one
    (HTTP, WebSocket) the account decides. Raises ApprovalNotFound, NotAllowed, AlreadyDecided.
    """
    approval = await _get_decidable(tx, account, approval_id, by, decision_context)
    question = is_question(approval.tool)
    if question and approved:
        raise InvalidAnswer("this is a question: it is answered, not approved")
    name = name or await _key_name(tx, account, by)
    state = "approved" if approved else "denied"
    if await store.decide(tx.connection, approval.id, state=state, by=by, name=name, comment=comment):
        resolution: dict[str, Any] = {
            "approval": approval.id,
            "decision": "approve" if approved else "deny",
            "by": by,
            "name": name,
            "comment": comment,
            "command": render_call(approval.tool, approval.args),
            "asked": approval_event_id(approval.id),
        }
        if question:
            resolution = {"question": approval.command, "declined": True, **resolution}
        await _emit_decided(tx, approval, resolution)
    decided = await store.get(tx.connection, account, approval_id) or approval
    if decided.state != state:
        raise AlreadyDecided(decided)
    return decided


async def answer_in(
    tx: Transaction,
    account: str,
    approval_id: str,
    given: str | Mapping[str, str],
    *,
    by: str,
    name: str = "",
    files: Sequence[Mapping[str, Any]] = (),
    decision_context: DecisionContext | None = None,
) -> Approval:
    """Answer a question in the caller's transaction; the same answer again changes nothing.

    `files` are stored files, as a message contains them. Raises InvalidAnswer, and like `decide_in`.
    """
    approval = await _get_decidable(tx, account, approval_id, by, decision_context)
    if not is_question(approval.tool):
        raise InvalidAnswer("this is no question: it is approved or denied")
    answer = parse_answer(approval.tool, approval.args, given)
    name = name or await _key_name(tx, account, by)
    if await store.decide(
        tx.connection, approval.id, state=ANSWERED, by=by, name=name, comment=answer, files=files
    ):
        await store.attach_files(tx.connection, approval, files)
        resolution = {
            "approval": approval.id,
            "question": approval.command,
            "answer": answer[:MAX_ANSWER],
            "by": by,
            "name": name,
            "asked": approval_event_id(approval.id),
        }
        await _emit_decided(tx, approval, resolution)
    answered = await store.get(tx.connection, account, approval_id) or approval
    if not is_answered_so(answered, answer, files):
        raise AlreadyDecided(answered)
    return answered


async def _get_decidable(
    tx: Transaction, account: str, approval_id: str, by: str, decision_context: DecisionContext | None
) -> Approval:
    """Return an approval that a person may decide, and lock its turn; raises ApprovalNotFound, NotAllowed.

    Of two decisions at once the second one must see the first: the last one continues the turn.
    """
    approval = await store.get(tx.connection, account, approval_id)
    if approval is None:
        raise ApprovalNotFound(f"there is no approval {approval_id!r}")
    if decision_context is not None:
        await _check_may_decide(tx, approval, by, decision_context)
    await turns.lock(tx.connection, approval.turn)
    return approval


async def _key_name(tx: Transaction, account: str, by: str) -> str:
    """Return how people know an API key; empty if `by` is none."""
    found = await accounts.get_key(tx.connection, account, by)
    return f'key "{found.name}"' if found is not None and found.id == by else ""


async def _check_may_decide(
    tx: Transaction, approval: Approval, by: str, decision_context: DecisionContext
) -> None:
    if not await same_room(tx.connection, approval.conversation, decision_context.address):
        raise ApprovalNotFound(f"there is no approval {approval.id!r} in this chat")
    turn = await turns.get(tx.connection, approval.account, approval.turn)
    asker, address = turn.asker if turn else "", decision_context.address
    if not may_decide(decision_context.rule, by, asker=asker, address=address):
        raise NotAllowed(refusal_text(decision_context.rule))


async def _emit_decided(tx: Transaction, approval: Approval, resolution: Mapping[str, Any]) -> None:
    question = is_question(approval.tool)
    kind = EventType.QUESTION_ANSWERED if question else EventType.APPROVAL_RESOLVED
    tx.emit(Event.now(kind, approval.conversation, resolution, turn=approval.turn))
    if await store.count_pending(tx.connection, approval.turn) == 0:
        await turns.requeue(tx.connection, approval.turn, from_state=TurnState.WAITING)
        tx.wake(WorkQueue.TURN, approval.conversation, account=approval.account)
