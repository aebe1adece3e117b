"""Approvals over HTTP: tool calls that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr, model_validator

from gateway.conversations.approval_question import render_call
from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound
from gateway.conversations.questions import (
    ANSWERED,
    MAX_ANSWER,
    InvalidAnswer,
    describe_question,
    is_question,
)
from gateway.store.turns import approvals as store
from gateway.store.turns.approvals import Approval
from gateway.web.api.conversations import filter_by
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

ApprovalState = Literal["pending", "approved", "denied", "answered", "expired", "void"]
"""`void`: the call or its sandbox was changed before it ran, and the approval was requested again."""


class ApprovalDecisionRequest(RequestModel):
    """The body that decides an approval, or answers a question: `decision`, or `answer`."""

    decision: Literal["approve", "deny"] | None = None
    answer: Annotated[StrictStr, Field(max_length=MAX_ANSWER)] | dict[str, StrictStr] | None = None
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> ApprovalDecisionRequest:
        if (self.decision is None) == (self.answer is None):
            raise ValueError("give either decision or answer")
        return self


class ApprovalResponse(ResponseModel):
    """A tool call and its decision, or a question and its `answer`; `question` is the text people read."""

    id: str
    kind: Literal["tool", "question"]
    state: ApprovalState
    tool: str
    args: dict[str, Any]
    command: str
    question: str
    choices: list[str] | None = None
    form: dict[str, str] | None = None
    answer: str | None = None
    conversation: str
    turn: str
    decided_by: str | None
    decided_name: str | None
    comment: str | None
    created_at: datetime
    decided_at: datetime | None


class ApprovalQuery(PageQuery):
    """The filter of approvals; without a state all of them."""

    state: ApprovalState | None = None
    conversation: Annotated[str, Field(max_length=300)] | None = None


def to_response(approval: Approval) -> ApprovalResponse:
    """Return an approval as a response."""
    question = is_question(approval.tool)
    return ApprovalResponse.model_validate(
        {
            **(describe_question(approval.tool, approval.args) if question else {}),
            "id": approval.id,
            "kind": "question" if question else "tool",
            "answer": approval.comment if approval.state == ANSWERED else None,
            "state": approval.state,
            "tool": approval.tool,
            "args": dict(approval.args),
            "command": render_call(approval.tool, approval.args),
            "question": approval.command,
            "conversation": approval.conversation,
            "turn": approval.turn,
            "decided_by": approval.decided_by,
            "decided_name": approval.decided_name,
            "comment": approval.comment,
            "created_at": approval.created_at,
            "decided_at": approval.decided_at,
        }
    )


async def list_approvals(call: ApiCall[NoContent, ApprovalQuery]) -> ListPage[ApprovalResponse]:
    """List approvals, newest first."""
    query = call.query
    async with call.context.database.read() as connection:
        found = await store.list_for_account(
            connection,
            call.account,
            state=query.state,
            after=query.cursor,
            limit=query.limit + 1,
            conversation=await filter_by(connection, call.account, query.conversation),
        )
    page, following = paginate(found, query.limit)
    return ListPage[ApprovalResponse](items=[to_response(one) for one in page], next=following)


async def get_approval(call: ApiCall[NoContent, NoContent]) -> ApprovalResponse:
    """Return one approval."""
    async with call.context.database.read() as connection:
        approval = await store.get(connection, call.account, call.path["id"])
    if approval is None:
        raise not_found("there is no such approval in this account")
    return to_response(approval)


async def decide(call: ApiCall[ApprovalDecisionRequest, NoContent]) -> ApprovalResponse:
    """Decide an approval or answer a question; a different decision later is a 409 with the first one."""
    body = call.body
    given, approvals = body.answer, call.services.approvals
    by = call.principal.key
    try:
        if given is not None:
            approval = await approvals.answer(call.account, call.path["id"], given, by=by)
        else:
            approved = body.decision == "approve"
            approval = await approvals.decide(
                call.account, call.path["id"], approved=approved, by=by, comment=body.comment
            )
    except InvalidAnswer as error:
        raise HttpProblem(422, str(error)) from None
    except ApprovalNotFound:
        raise not_found("there is no such approval in this account") from None
    except AlreadyDecided as error:
        winner = to_response(error.decided).model_dump(mode="json")
        raise HttpProblem(409, str(error), members={"winner": winner}) from None
    return to_response(approval)
