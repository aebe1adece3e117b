"""SQL of approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, exists, func, insert, null, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.conversations.files import attach_uploads
from gateway.store.tables import IS_PENDING, approvals


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A tool call that waits for a decision, bound to the exact call by its digest.

    `files` are those of an answer, as a message contains them. `usage` is the turn's until it was requested.
    """

    id: str
    account: str
    conversation: str
    turn: str
    call: str
    tool: str
    args: Mapping[str, Any]
    command: str
    digest: str
    state: str = "pending"
    decided_by: str | None = None
    decided_name: str | None = None
    comment: str | None = None
    files: Sequence[Mapping[str, Any]] | None = None
    usage: Mapping[str, Any] | None = None
    created_at: datetime
    decided_at: datetime | None = None


_EXPIRE = (
    update(approvals)
    .where(approvals.c.turn == bindparam("of"), approvals.c.state == "pending")
    .values(state="expired", decided_at=bindparam("now"))
)
_OTHERS = approvals.alias()
_LONG_PENDING = (
    select(approvals.c.turn, approvals.c.conversation, approvals.c.account)
    .where(
        IS_PENDING,
        approvals.c.created_at < bindparam("before"),
        approvals.c.tool == bindparam("of"),
        ~exists().where(
            _OTHERS.c.turn == approvals.c.turn,
            _OTHERS.c.state == "pending",
            _OTHERS.c.tool != bindparam("of"),
        ),
    )
    .group_by(approvals.c.turn, approvals.c.conversation, approvals.c.account)
    .limit(bindparam("most"))
)
_COLUMNS = [approvals.c[name] for name in Approval.__dataclass_fields__]


async def _all(connection: Connection, query: Any) -> list[Approval]:
    return [Approval(**row) for row in (await connection.execute(query)).mappings()]


async def insert_approval(connection: Connection, approval: Approval) -> None:
    """Insert a pending approval."""
    values = {name: getattr(approval, name) for name in Approval.__dataclass_fields__}
    values |= {"args": dict(approval.args), "files": null(), "usage": dict(approval.usage or {}) or null()}
    await connection.execute(insert(approvals).values(**values))


async def get(connection: Connection, account: str, approval: str) -> Approval | None:
    """Return an account's approval."""
    found = await _all(
        connection,
        select(*_COLUMNS).where(approvals.c.id == approval, approvals.c.account == account),
    )
    return found[0] if found else None


async def get_conversation(connection: Connection, approval: str) -> str | None:
    """Return the conversation of an approval of any account."""
    found = await connection.execute(select(approvals.c.conversation).where(approvals.c.id == approval))
    return found.scalar_one_or_none()


async def list_for_turn(connection: Connection, turn: str) -> list[Approval]:
    """Return a turn's approvals, oldest first."""
    return await _all(connection, select(*_COLUMNS).where(approvals.c.turn == turn).order_by(approvals.c.id))


async def list_for_account(
    connection: Connection,
    account: str,
    *,
    state: str | None = "pending",
    after: str | None = None,
    limit: int = 50,
    conversation: str | None = None,
) -> list[Approval]:
    """Return an account's approvals, newest first, older than the id `after`."""
    query = select(*_COLUMNS).where(approvals.c.account == account)
    if state:
        query = query.where(approvals.c.state == state)
    if after:
        query = query.where(approvals.c.id < after)
    if conversation:
        query = query.where(approvals.c.conversation == conversation)
    return await _all(connection, query.order_by(approvals.c.id.desc()).limit(limit))


async def list_pending_for_tool(
    connection: Connection, account: str, tool: str, *, limit: int = 200
) -> list[Approval]:
    """Return the newest pending approvals of a tool's calls, the newest first."""
    pending = (approvals.c.account == account) & IS_PENDING & (approvals.c.tool == tool)
    query = select(*_COLUMNS).where(pending).order_by(approvals.c.created_at.desc())
    return await _all(connection, query.limit(limit))


async def list_turns_pending_only(
    connection: Connection, tool: str, *, before: datetime, limit: int
) -> list[tuple[str, str, str]]:
    """Return (turn, conversation, account) of turns that have waited for calls of a tool alone since then."""
    rows = await connection.execute(_LONG_PENDING, {"of": tool, "before": before, "most": limit})
    return [(row[0], row[1], row[2]) for row in rows]


async def decide(
    connection: Connection,
    approval: str,
    *,
    state: str,
    by: str,
    name: str = "",
    comment: str,
    files: Sequence[Mapping[str, Any]] = (),
) -> bool:
    """Record a decision; returns False when there is one already. `name` is for display."""
    decided = await connection.execute(
        update(approvals)
        .where(approvals.c.id == approval, approvals.c.state == "pending")
        .values(
            state=state,
            decided_by=by,
            decided_name=name[:200] or None,
            comment=comment,
            files=list(files) or null(),
            decided_at=utc_now(),
        )
    )
    return decided.rowcount == 1


async def attach_files(
    connection: Connection, approval: Approval, files: Sequence[Mapping[str, Any]]
) -> None:
    """Attach the stored files of an answer to its conversation, so that they are deleted with it."""
    if files:
        ids = [one["id"] for one in files]
        await attach_uploads(
            connection, approval.account, ids, conversation=approval.conversation, turn=approval.turn
        )


async def void(connection: Connection, approval: str) -> bool:
    """Revoke an approval because what it was bound to changed; returns False when it was not approved."""
    voided = await connection.execute(
        update(approvals)
        .where(approvals.c.id == approval, approvals.c.state == "approved")
        .values(state="void")
    )
    return voided.rowcount == 1


async def expire_for_turn(connection: Connection, turn: str) -> list[Approval]:
    """Close the pending approvals of a turn that ends, and return them, oldest first."""
    expired = await connection.execute(_EXPIRE, {"of": turn, "now": utc_now()})
    if not expired.rowcount:
        return []
    return [one for one in await list_for_turn(connection, turn) if one.state == "expired"]


async def count_pending(connection: Connection, turn: str) -> int:
    """Return how many approvals of a turn are pending."""
    counted = await connection.execute(
        select(func.count())
        .select_from(approvals)
        .where(approvals.c.turn == turn, approvals.c.state == "pending")
    )
    return int(counted.scalar_one())
