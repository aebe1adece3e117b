"""SQL of drafts: the visible part of a message in a chat while the message is still being generated.

A room that gets a new id gets copies of its rows. All have the `created_at` of the first one, by which the
process that still writes the draft under the old id finds them.

A row whose message is a turn's id marks that the turn has ended in that chat: no draft of it may begin any
more.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Update, bindparam, delete, func, literal, null, or_, select, update

from channels.message import Address
from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.tables import drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """A draft's platform id, its text, and until when a write may be running.

    With a text and no platform id it may be visible or not: its first call has not been answered.
    """

    platform_id: str | None
    busy_until: datetime | None
    text: str = ""
    created_at: datetime | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether a first call was made and its outcome is unknown."""
        return self.platform_id is None and bool(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWrite:
    """A call that is about to be made, after which the draft shows `text`."""

    account: str
    message: str
    target: str
    turn: str
    text: str
    now: datetime
    busy_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage:
    """A message that shows the steps of a turn."""

    turn: str
    target: str
    platform_id: str


STEPS_RUNNING, STEPS_ENDED = "steps", "ended"
"""What the row of a step message shows."""

_STEPS_SUFFIX = ".steps"
_RUNNING_STEPS = (
    select(drafts.c.message, drafts.c.target, drafts.c.platform_id)
    .where(
        drafts.c.turn == "",
        drafts.c.shown == STEPS_RUNNING,
        drafts.c.claimed_at.is_(None),
        drafts.c.platform_id.is_not(None),
        drafts.c.created_at < bindparam("before"),
    )
    .order_by(drafts.c.created_at.desc())
    .limit(1000)
)
_GET = select(drafts.c.platform_id, drafts.c.busy_until, drafts.c.shown, drafts.c.created_at).where(
    drafts.c.message == bindparam("of"), drafts.c.target == bindparam("at")
)


async def may_begin(connection: Connection, account: str, turn: str, target: str, *, now: datetime) -> bool:
    """Return whether a turn has not ended in a chat; its end then waits for this transaction."""
    rows = await connection.execute(
        insert_on_conflict(drafts, connection.dialect.name)
        .values(message=turn, target=target, account=account, created_at=now)
        .on_conflict_do_update(
            index_elements=["message", "target"],
            set_={"busy_until": None},
            where=drafts.c.claimed_at.is_(None),
        )
        .returning(drafts.c.message)
    )
    return rows.first() is not None


async def begin_write(connection: Connection, write: DraftWrite) -> DraftRow | None:
    """Record a call that is about to be made; None when the final text has claimed the draft."""
    rows = await connection.execute(
        insert_on_conflict(drafts, connection.dialect.name)
        .values(
            message=write.message,
            target=write.target,
            account=write.account,
            turn=write.turn,
            shown=write.text,
            busy_until=write.busy_until,
            created_at=write.now,
        )
        .on_conflict_do_update(
            index_elements=["message", "target"],
            set_={"busy_until": write.busy_until, "shown": write.text},
            where=drafts.c.claimed_at.is_(None),
        )
        .returning(drafts.c.platform_id)
    )
    row = rows.first()
    return None if row is None else DraftRow(platform_id=row[0], busy_until=write.busy_until, text=write.text)


async def set_platform_id(connection: Connection, message: str, target: str, platform_id: str) -> None:
    """Store the platform id of a draft."""
    await connection.execute(_update_copies(message, target).values(platform_id=platform_id))


async def extend_write(connection: Connection, message: str, target: str, *, until: datetime) -> None:
    """Record that a call for a draft is still in progress."""
    await connection.execute(_update_copies(message, target).values(busy_until=until))


def steps_row(turn: str) -> str:
    """Return the name of the row of a turn's step message."""
    return f"{turn}{_STEPS_SUFFIX}"


async def set_steps_state(connection: Connection, turn: str, target: str, state: str) -> None:
    """Record whether a step message runs or has ended: STEPS_RUNNING or STEPS_ENDED."""
    await connection.execute(_update_copies(steps_row(turn), target).values(shown=state))


async def list_running_steps(connection: Connection, *, before: datetime) -> list[StepMessage]:
    """Return the latest step messages, at most 1,000, that began before a moment and have not ended."""
    rows = await connection.execute(_RUNNING_STEPS, {"before": before})
    return [
        StepMessage(
            turn=row.message.removesuffix(_STEPS_SUFFIX), target=row.target, platform_id=row.platform_id
        )
        for row in rows
    ]


async def withdraw(connection: Connection, message: str, target: str) -> None:
    """Record that a draft is not visible, because its first call was not carried out."""
    await connection.execute(
        _update_copies(message, target).where(drafts.c.platform_id.is_(None)).values(shown=None)
    )


async def delete_draft(connection: Connection, message: str, target: str) -> None:
    """Delete the row of a message that was deleted in the chat."""
    await connection.execute(delete(drafts).where(drafts.c.message == message, drafts.c.target == target))


async def end_write(connection: Connection, message: str, target: str) -> None:
    """Record that no call for a draft is in progress."""
    await connection.execute(_update_copies(message, target).values(busy_until=None))


async def get(connection: Connection, message: str, target: str) -> DraftRow | None:
    """Return a draft, or None when there is none."""
    row = (await connection.execute(_GET, {"of": message, "at": target})).first()
    if row is None:
        return None
    return DraftRow(platform_id=row[0], busy_until=row[1], text=row[2] or "", created_at=row[3])


async def first_target(connection: Connection, message: str, target: str) -> str:
    """Return the target under which a draft's first call was made: its rooms were moved in this order."""
    rows = await connection.execute(
        select(drafts.c.target)
        .where(*_are_copies(message, target))
        .order_by(drafts.c.claimed_at.is_(None), drafts.c.claimed_at)
        .limit(1)
    )
    return rows.scalar() or target


async def current_target(connection: Connection, message: str, target: str) -> str:
    """Return the target of a step message, whose room may have got a new id since."""
    rows = await connection.execute(
        select(drafts.c.target).where(*_are_copies(message, target), drafts.c.claimed_at.is_(None)).limit(1)
    )
    return rows.scalar() or target


async def claim(connection: Connection, message: str, target: str, *, now: datetime) -> str | None:
    """Claim a draft for its final text, permanently; return its platform id, if it is visible."""
    claimed = await connection.execute(
        _update_one(message, target).values(claimed_at=now).returning(drafts.c.platform_id)
    )
    platform_id: str | None = claimed.scalar_one_or_none()
    return platform_id


async def end_turn(
    connection: Connection, account: str, turn: str, target: str, *, by: str, now: datetime
) -> None:
    """Prevent new drafts of a turn in a chat, because the delivery `by` reports there that it has ended."""
    await connection.execute(
        insert_on_conflict(drafts, connection.dialect.name)
        .values(message=turn, target=target, account=account, claimed_at=now, ended_by=by, created_at=now)
        .on_conflict_do_update(
            index_elements=["message", "target"],
            set_={"claimed_at": func.coalesce(drafts.c.claimed_at, now)},
        )
    )


async def list_unclaimed(connection: Connection, turn: str, target: str, *, by: str) -> dict[str, DraftRow]:
    """Return the drafts of a turn that are unclaimed or claimed by this delivery, the newest first."""
    rows = await connection.execute(
        select(
            drafts.c.message, drafts.c.platform_id, drafts.c.busy_until, drafts.c.shown, drafts.c.created_at
        )
        .where(
            drafts.c.turn == turn,
            drafts.c.target == target,
            or_(drafts.c.claimed_at.is_(None), drafts.c.ended_by == by),
        )
        .order_by(drafts.c.created_at.desc())
    )
    return {
        row[0]: DraftRow(platform_id=row[1], busy_until=row[2], text=row[3] or "", created_at=row[4])
        for row in rows
    }


async def get_ended_text(
    connection: Connection, turn: str, target: str, *, by: str, platform_id: str | None
) -> str:
    """Return the unfinished text that a message shows above the end of its turn, which `by` reported."""
    rows = await connection.execute(
        select(drafts.c.shown).where(
            drafts.c.turn == turn,
            drafts.c.target == target,
            drafts.c.ended_by == by,
            drafts.c.platform_id == platform_id,
        )
    )
    return rows.scalar() or ""


async def claim_all(
    connection: Connection, messages: Collection[str], target: str, *, by: str, now: datetime
) -> None:
    """Claim the drafts that a turn left, for the delivery that reports its end."""
    await connection.execute(
        update(drafts)
        .where(drafts.c.message.in_(list(messages)), drafts.c.target == target)
        .values(claimed_at=now, ended_by=by, busy_until=None)
    )


async def move_room(
    connection: Connection, *, old: Address, new: Address, keeps_messages: bool, now: datetime
) -> None:
    """Move drafts to the new id of a room, where their messages have the same ids or others.

    Under the old id they are claimed: whoever still writes them there stops, and the final text edits them.
    A draft whose message has another id is like one whose first call was not answered: its key finds it.
    """
    changed = {} if keeps_messages else {drafts.c.platform_id: null()}
    names_it = drafts.c.target.contains(json.dumps(old.room), autoescape=True)
    targets = await connection.execute(select(drafts.c.target).where(names_it).distinct())
    for target in targets.scalars().all():
        if (moved := old.moved_target(target, new)) is None:
            continue
        there = drafts.c.target == target
        replaced = {drafts.c.target: literal(moved), **changed}
        values = [replaced.get(column, column) for column in drafts.c]
        copies = insert_on_conflict(drafts, connection.dialect.name).from_select(
            [column.name for column in drafts.c], select(*values).where(there)
        )
        await connection.execute(copies.on_conflict_do_nothing(index_elements=["message", "target"]))
        await connection.execute(
            update(drafts).where(there, drafts.c.claimed_at.is_(None)).values(claimed_at=now)
        )


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Delete drafts that were created before a moment; return their number."""
    return (await connection.execute(delete(drafts).where(drafts.c.created_at < before))).rowcount


def _update_one(message: str, target: str) -> Update:
    return update(drafts).where(drafts.c.message == message, drafts.c.target == target)


def _update_copies(message: str, target: str) -> Update:
    return update(drafts).where(*_are_copies(message, target))


def _are_copies(message: str, target: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a draft's row and of its copies for ids that its room got later."""
    began = select(drafts.c.created_at).where(drafts.c.message == message, drafts.c.target == target)
    return drafts.c.message == message, drafts.c.created_at == began.scalar_subquery()
