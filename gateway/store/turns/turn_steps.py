"""SQL of the steps of turns: their tool calls, with arguments and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import bindparam, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.tables import steps, turns

StepState = Literal["running", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A tool call's checkpoint."""

    step_key: str
    tool: str
    args: Mapping[str, Any]
    state: StepState
    result: Mapping[str, Any] | None
    started_at: datetime
    finished_at: datetime | None


_STEP = [steps.c[name] for name in StepRow.__dataclass_fields__]
_IS_STEP = (steps.c.turn == bindparam("of")) & (steps.c.step_key == bindparam("key"))
_GET = select(*_STEP).where(_IS_STEP)
_BEGIN = insert(steps).values(
    account=select(turns.c.account).where(turns.c.id == bindparam("of")).scalar_subquery(),
    position=select(func.count()).select_from(steps).where(steps.c.turn == bindparam("of")).scalar_subquery(),
)
_END = (
    update(steps)
    .where(_IS_STEP)
    .values(state="done", result=bindparam("returned"), finished_at=bindparam("now"))
)


async def get(connection: Connection, turn: str, step_key: str) -> StepRow | None:
    """Return a tool call's checkpoint."""
    rows = (await connection.execute(_GET, {"of": turn, "key": step_key})).mappings()
    row = rows.first()
    return StepRow(**row) if row else None


async def list_for_turn(connection: Connection, turn: str) -> list[StepRow]:
    """Return a turn's tool calls in the order they began."""
    rows = (
        await connection.execute(select(*_STEP).where(steps.c.turn == turn).order_by(steps.c.position))
    ).mappings()
    return [StepRow(**row) for row in rows]


async def begin(
    connection: Connection, turn: str, step_key: str, *, tool: str, args: Mapping[str, Any]
) -> None:
    """Record that a tool call is about to happen."""
    await connection.execute(
        _BEGIN,
        {
            "turn": turn,
            "of": turn,
            "step_key": step_key,
            "tool": tool,
            "args": dict(args),
            "state": "running",
            "started_at": utc_now(),
        },
    )


async def end(connection: Connection, turn: str, step_key: str, result: Mapping[str, Any]) -> None:
    """Record the result of a tool call."""
    await connection.execute(_END, {"of": turn, "key": step_key, "returned": dict(result), "now": utc_now()})
