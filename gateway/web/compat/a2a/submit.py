"""Messages of A2A: each starts a task, or answers what a task waits for."""

from __future__ import annotations

from typing import Any

from gateway.conversations.approvals import AlreadyDecided
from gateway.conversations.questions import InvalidAnswer, is_question
from gateway.store.turns.approvals import Approval
from gateway.web.compat.a2a.errors import INVALID_PARAMS, UNSUPPORTED_OPERATION, A2aError
from gateway.web.compat.a2a.requests import A2aMessage, A2aQuery, A2aRequest, SendParams
from gateway.web.compat.a2a.tasks import load_task
from gateway.web.compat.ask import SubmittedTurn, ask
from gateway.web.compat.mcp_tools import DEFAULT_AGENT
from gateway.web.compat.request_identity import RequestIdentity, digest
from gateway.web.http.problems import invalid_field
from gateway.web.http.route import ApiCall

A2aCall = ApiCall[A2aRequest, A2aQuery]

_PARTS = "/params/message/parts"
_DECISIONS = {"approve": True, "approved": True, "yes": True, "deny": False, "denied": False, "no": False}


async def submit(call: A2aCall, params: SendParams) -> SubmittedTurn:
    """Queue the turn of a message, or continue the task that it names; raises HttpProblem, A2aError.

    The same message again, by its id, is the same task.
    """
    message = params.message
    if message.taskId is not None:
        return await _continue(call, message, message.taskId)
    text, files = message.text, message.files
    if not text and not files:
        raise invalid_field(_PARTS, "a message needs a text or a file")
    agent = call.query.agent or params.tenant or (None if message.contextId else DEFAULT_AGENT)
    return await ask(
        call,
        agent=agent,
        conversation=message.contextId,
        text=text,
        files=files,
        pointer=_PARTS,
        identity=None if call.idempotency_key else _identity(call, message, text),
    )


def _identity(call: A2aCall, message: A2aMessage, text: str) -> RequestIdentity:
    key = digest(call.principal.key, message.contextId or "", message.messageId, text)
    return RequestIdentity(source="a2a", key=key)


async def _continue(call: A2aCall, message: A2aMessage, task: str) -> SubmittedTurn:
    """Answer the oldest question of a task, or decide its oldest approval."""
    waiting = await load_task(call, task)
    if message.contextId not in (None, waiting.context, waiting.turn.conversation):
        raise A2aError(INVALID_PARAMS, "the task is not of this context")
    if not waiting.pending:
        state = "has ended" if waiting.has_ended else "waits for no input"
        remedy = "send the message with its contextId and without taskId"
        raise A2aError(UNSUPPORTED_OPERATION, f"the task {state}: {remedy}")
    try:
        await _answer(call, waiting.pending[0], message)
    except InvalidAnswer as error:
        raise invalid_field(_PARTS, str(error)) from None
    except AlreadyDecided:
        pass  # another decision came in the same moment; it is kept
    return SubmittedTurn(
        turn=waiting.turn.id,
        conversation=waiting.turn.conversation,
        agent=waiting.turn.agent,
        after=0,
        created=0,
        repeated=True,
    )


async def _answer(call: ApiCall[Any, Any], approval: Approval, message: A2aMessage) -> None:
    approvals, by, text = call.services.approvals, call.principal.key, message.text
    if is_question(approval.tool):
        await approvals.answer(call.account, approval.id, text, by=by)
        return
    approved = _DECISIONS.get(text.strip().rstrip(".!").lower())
    if approved is None:
        raise invalid_field(_PARTS, "the task waits for an approval: send `approve` or `deny`")
    await approvals.decide(call.account, approval.id, approved=approved, by=by)
