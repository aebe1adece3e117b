"""Approvals over HTTP: tool calls that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr

from gateway.conversations.approval_question import render_call
from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound
from gateway.store.turns import approvals as store
from gateway.store.turns.approvals import Approval
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

ApprovalState = Literal["pending", "approved", "denied", "expired", "void"]
"""`void`: approved for a sandbox that changed before the call ran, and requested again."""


class ApprovalDecisionRequest(RequestModel):
    """The body that decides an approval."""

    decision: Literal["approve", "deny"]
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class ApprovalResponse(ResponseModel):
    """A tool call and its decision; `question` is the whole text that people read."""

    id: str
    state: ApprovalState
    tool: str
    args: dict[str, Any]
    command: str
    question: str
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
    return ApprovalResponse.model_validate(
        {
            "id": approval.id,
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
            conversation=query.conversation,
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
    """Decide an approval; a different decision after the first is a 409 that contains the first."""
    body = call.body
    try:
        approval = await call.services.approvals.decide(
            call.account,
            call.path["id"],
            approved=body.decision == "approve",
            by=call.principal.key,
            comment=body.comment,
        )
    except ApprovalNotFound:
        raise not_found("there is no such approval in this account") from None
    except AlreadyDecided as error:
        winner = to_response(error.decided).model_dump(mode="json")
        raise HttpProblem(409, str(error), members={"winner": winner}) from None
    return to_response(approval)
