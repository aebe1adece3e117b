"""Approvals: tool calls that wait for people, for minutes or days, with one winner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from delivery.event import Event, Kind, new_id
from delivery.ledger import Entry, Ledger
from delivery.port import Queue
from gateway.agents.port import Call, Decision
from gateway.store import approvals as store
from gateway.store import turns
from gateway.store.approvals import Approval
from gateway.store.turns import Turn
from gateway.turn import TurnState
from gateway.voice import question_of


class AlreadyDecided(Exception):
    """Somebody else decided otherwise first; `winner` is what stands."""

    def __init__(self, winner: Approval) -> None:
        super().__init__(f"already {winner.state} by {winner.decided_by or 'nobody'}")
        self.winner = winner


class NoSuchApproval(Exception):
    """There is no such approval in this account."""


def digest_of(tool: str, args: Mapping[str, Any]) -> str:
    """Return what binds a decision to one exact call."""
    exact = json.dumps([tool, args], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()


def command_of(tool: str, args: Mapping[str, Any]) -> str:
    """Return what a person is shown of a call: a command as it is, anything else as JSON."""
    command = args.get("command")
    if isinstance(command, str):
        return f"{command} &" if args.get("background") else command
    return f"{tool} {json.dumps(args, sort_keys=True, ensure_ascii=False)}"


async def ask(entry: Entry, turn: Turn, calls: Iterable[Call]) -> None:
    """Record that these calls of a turn wait for people, and tell everybody who can see them."""
    asked = {approval.call for approval in await store.of_turn(entry.connection, turn.id)}
    for call in calls:
        if call.id in asked:
            continue
        approval = Approval(
            id=new_id("apr"),
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            call=call.id,
            tool=call.name,
            args=call.args,
            command=command_of(call.name, call.args),
            digest=digest_of(call.name, call.args),
            created_at=datetime.now(UTC),
        )
        await store.insert_approval(entry.connection, approval)
        entry.tell(
            Event.now(
                Kind.APPROVAL_REQUESTED,
                turn.conversation,
                {
                    "approval": approval.id,
                    "tool": approval.tool,
                    "args": dict(approval.args),
                    "command": approval.command,
                },
                turn=turn.id,
                event_id=question_of(approval.id),
            )
        )


def decisions(approvals: Iterable[Approval]) -> dict[str, Decision]:
    """Return what people decided, by call; empty while anything is undecided."""
    found = list(approvals)
    if any(approval.state == "pending" for approval in found):
        return {}
    return {
        approval.call: Decision(
            approved=approval.state == "approved",
            by=approval.decided_by or "",
            comment=approval.comment or "",
        )
        for approval in found
    }


class Approvals:
    """The one place where people decide, whatever they press or type."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def decide(
        self, account: str, approval_id: str, *, approved: bool, by: str, name: str = "", comment: str = ""
    ) -> Approval:
        """Decide; the same decision again is no error. Raises NoSuchApproval, AlreadyDecided."""
        async with self._ledger.entry("approval.decide") as entry:
            return await decide_in(
                entry, account, approval_id, approved=approved, by=by, name=name, comment=comment
            )


async def decide_in(
    entry: Entry,
    account: str,
    approval_id: str,
    *,
    approved: bool,
    by: str,
    name: str = "",
    comment: str = "",
) -> Approval:
    """Decide in the caller's transaction; `name` is for showing. Raises NoSuchApproval, AlreadyDecided."""
    approval = await store.find(entry.connection, account, approval_id)
    if approval is None:
        raise NoSuchApproval(f"there is no approval {approval_id!r}")
    if await store.decide(entry.connection, approval.id, approved=approved, by=by, comment=comment):
        resolution = {
            "approval": approval.id,
            "decision": "approve" if approved else "deny",
            "by": by,
            "name": name,
            "comment": comment,
            "command": approval.command,
            "asked": question_of(approval.id),
        }
        await _tell_decided(entry, approval, resolution)
    decided = await store.find(entry.connection, account, approval_id) or approval
    if decided.state != ("approved" if approved else "denied"):
        raise AlreadyDecided(decided)
    return decided


async def _tell_decided(entry: Entry, approval: Approval, resolution: Mapping[str, Any]) -> None:
    entry.tell(Event.now(Kind.APPROVAL_RESOLVED, approval.conversation, resolution, turn=approval.turn))
    if await store.pending_of(entry.connection, approval.turn) == 0:
        await turns.requeue(entry.connection, approval.turn, was=TurnState.WAITING)
        entry.wake(Queue.TURN, approval.conversation)
