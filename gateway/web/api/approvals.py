"""Approvals over HTTP: tool calls that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr

from gateway.conversations.approvals import AlreadyDecided, NoSuchApproval
from gateway.store.turns import approvals as store
from gateway.store.turns.approvals import Approval
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import Call, Nothing, Shown, Strict

State = Literal["pending", "approved", "denied", "expired", "void"]
"""`void`: approved for a sandbox that was changed before the call was carried out, and asked for anew."""


class Decision(Strict):
    """What a person decides."""

    decision: Literal["approve", "deny"]
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class ApprovalShown(Shown):
    """A tool call and what was decided about it; `command` is what a person reads."""

    id: str
    state: State
    tool: str
    args: dict[str, Any]
    command: str
    conversation: str
    turn: str
    decided_by: str | None
    decided_name: str | None
    comment: str | None
    created_at: datetime
    decided_at: datetime | None


class ApprovalPage(Page):
    """Which approvals; without a state all of them, the newest first."""

    state: State | None = None
    conversation: Annotated[str, Field(max_length=300)] | None = None


def shown(approval: Approval) -> ApprovalShown:
    """Return an approval as its owner sees it."""
    return ApprovalShown.model_validate(
        {
            "id": approval.id,
            "state": approval.state,
            "tool": approval.tool,
            "args": dict(approval.args),
            "command": approval.command,
            "conversation": approval.conversation,
            "turn": approval.turn,
            "decided_by": approval.decided_by,
            "decided_name": approval.decided_name,
            "comment": approval.comment,
            "created_at": approval.created_at,
            "decided_at": approval.decided_at,
        }
    )


async def list_approvals(call: Call[Nothing, ApprovalPage]) -> Items[ApprovalShown]:
    """List approvals, newest first."""
    query = call.query
    async with call.surface.database.read() as connection:
        found = await store.listed(
            connection,
            call.account,
            state=query.state,
            after=query.cursor,
            limit=query.limit + 1,
            conversation=query.conversation,
        )
    page, following = cut(found, query.limit)
    return Items[ApprovalShown](items=[shown(one) for one in page], next=following)


async def show_approval(call: Call[Nothing, Nothing]) -> ApprovalShown:
    """Return one approval."""
    async with call.surface.database.read() as connection:
        approval = await store.find(connection, call.account, call.path["id"])
    if approval is None:
        raise not_found("there is no such approval in this account")
    return shown(approval)


async def decide(call: Call[Decision, Nothing]) -> ApprovalShown:
    """Decide; the first decision stands, and a different one is a 409 that shows it."""
    body = call.body
    try:
        approval = await call.core.approvals.decide(
            call.account,
            call.path["id"],
            approved=body.decision == "approve",
            by=call.principal.key,
            comment=body.comment,
        )
    except NoSuchApproval:
        raise not_found("there is no such approval in this account") from None
    except AlreadyDecided as error:
        winner = shown(error.winner).model_dump(mode="json")
        raise Problem(409, str(error), members={"winner": winner}) from None
    return shown(approval)
