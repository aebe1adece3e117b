"""Approvals: tool calls that wait for people, for minutes or days, with one winner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from delivery.broker.port import Queue
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind, new_id
from gateway.agents.port import Call, Decision
from gateway.conversations.approver_rules import Seat, is_from, may_decide, refusal_of
from gateway.conversations.message_ids import question_of
from gateway.environments.resolver import Bench
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn

CHANGED = "The sandbox was changed after this was approved, so I ask again."


class AlreadyDecided(Exception):
    """Somebody else decided otherwise first, or nothing is left to decide; `winner` is what stands."""

    def __init__(self, winner: Approval) -> None:
        super().__init__(_standing(winner))
        self.winner = winner


def _standing(winner: Approval) -> str:
    if winner.state == "void":
        return "the sandbox was changed since, and it was asked again"
    if winner.state == "expired":
        return "the turn that asked has ended"
    return f"already {winner.state} by {winner.decided_name or winner.decided_by or 'nobody'}"


class NoSuchApproval(Exception):
    """There is no such approval in this account."""


class NotAllowed(Exception):
    """The rule of the channel does not let this person decide."""


def mark_of_all(benches: Mapping[str, Bench], first: Bench) -> str:
    """Return the mark of every sandbox an agent works in: a change of any of them is a change."""
    if len(benches) <= 1:
        return mark_of(first)
    marks = json.dumps({name: mark_of(bench) for name, bench in benches.items()}, sort_keys=True)
    return hashlib.sha256(marks.encode("utf-8", "surrogatepass")).hexdigest()


def mark_of(bench: Bench) -> str:
    """Return what tells one sandbox's configuration from another, and from itself once it is changed."""
    exact = json.dumps(
        [
            bench.provider,
            bench.sandbox_record,
            bench.workspace,
            bench.config.model_dump(mode="json", exclude_defaults=True),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of(tool: str, args: Mapping[str, Any], sandbox: str) -> str:
    """Return what binds a decision to one exact call in one sandbox as it is configured (`mark_of`)."""
    exact = json.dumps([tool, args, sandbox], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()


def command_of(tool: str, args: Mapping[str, Any]) -> str:
    """Return what a person is shown of a call: a command as it is, anything else as JSON."""
    command = args.get("command")
    if isinstance(command, str):
        return f"{command} &" if args.get("background") else command
    return f"{tool} {json.dumps(args, sort_keys=True, ensure_ascii=False)}"


async def ask(entry: Entry, turn: Turn, calls: Iterable[Call], sandbox: str, *, why: str = "") -> None:
    """Record that these calls of a turn wait for people, and tell everybody who can see them."""
    asked = {
        approval.call
        for approval in await store.of_turn(entry.connection, turn.id)
        if approval.state != "void"
    }
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
            digest=digest_of(call.name, call.args, sandbox),
            created_at=utc_now(),
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
                    **({"reason": why} if why else {}),
                },
                turn=turn.id,
                event_id=question_of(approval.id),
            )
        )


def decisions(approvals: Iterable[Approval]) -> dict[str, Decision]:
    """Return what people decided, by call; empty while anything is undecided."""
    found = [approval for approval in approvals if approval.state != "void"]
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


async def outdated(entry: Entry, asked: Iterable[Approval], sandbox: str) -> list[Approval]:
    """Return what was approved for a sandbox that is configured otherwise by now, and not carried out yet."""
    return [
        approval
        for approval in asked
        if approval.state == "approved"
        and approval.digest != digest_of(approval.tool, approval.args, sandbox)
        and await turns.step(entry.connection, approval.turn, approval.call) is None
    ]


async def ask_again(entry: Entry, turn: Turn, approvals: Iterable[Approval], sandbox: str) -> None:
    """Take approvals back and ask for the same calls anew."""
    calls = []
    for approval in approvals:
        await store.void(entry.connection, approval.id)
        calls.append(Call(id=approval.call, name=approval.tool, args=approval.args))
    await ask(entry, turn, calls, sandbox, why=CHANGED)


class Approvals:
    """The one place where people decide, whatever they press or type."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def decide(
        self,
        account: str,
        approval_id: str,
        *,
        approved: bool,
        by: str,
        name: str = "",
        comment: str = "",
        seat: Seat | None = None,
    ) -> Approval:
        """Decide; the same decision again is no error. Raises what `decide_in` raises."""
        async with self._ledger.entry("approval.decide") as entry:
            return await decide_in(
                entry, account, approval_id, approved=approved, by=by, name=name, comment=comment, seat=seat
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
    seat: Seat | None = None,
) -> Approval:
    """Decide in the caller's transaction; `name` is for showing.

    With a `seat` only what is asked in that chat is decided, and its rule holds; without one (HTTP, sockets)
    the account itself decides. Raises NoSuchApproval, NotAllowed, AlreadyDecided.
    """
    approval = await store.find(entry.connection, account, approval_id)
    if approval is None:
        raise NoSuchApproval(f"there is no approval {approval_id!r}")
    if seat is not None:
        await _check_seat(entry, approval, by, seat)
    if await store.decide(
        entry.connection, approval.id, approved=approved, by=by, name=name, comment=comment
    ):
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


async def _check_seat(entry: Entry, approval: Approval, by: str, seat: Seat) -> None:
    if not await is_from(entry.connection, approval.conversation, seat.address):
        raise NoSuchApproval(f"there is no approval {approval.id!r} in this chat")
    turn = await turns.find(entry.connection, approval.account, approval.turn)
    if not may_decide(seat.rule, by, asker=turn.asker if turn else ""):
        raise NotAllowed(refusal_of(seat.rule))


async def _tell_decided(entry: Entry, approval: Approval, resolution: Mapping[str, Any]) -> None:
    entry.tell(Event.now(Kind.APPROVAL_RESOLVED, approval.conversation, resolution, turn=approval.turn))
    if await store.pending_of(entry.connection, approval.turn) == 0:
        await turns.requeue(entry.connection, approval.turn, was=TurnState.WAITING)
        entry.wake(Queue.TURN, approval.conversation)
