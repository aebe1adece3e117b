"""SQL of reserved sandboxes: their rows and the leases on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, or_, select, update

from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.sandbox_tables import installations, sandbox_leases, sandboxes
from gateway.store.tables import jobs
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.reservations import Reservation, ReservationStatus

_OWNER = ("account", "scope", "conversation", "agent", "person", "record", "workspace")
_OWN = tuple(name for name in Reservation.__dataclass_fields__ if name != "owner")
_COLUMNS = [sandboxes.c[name] for name in (*_OWNER, *_OWN)]
_OF_LABEL = select(*_COLUMNS).where(sandboxes.c.label == bindparam("of"))


def _row(found: Mapping[Any, Any]) -> Reservation:
    owner = Owner(**{name: found[name] for name in _OWNER} | {"scope": Scope(found["scope"])})
    own = {name: found[name] for name in _OWN} | {"status": ReservationStatus(found["status"])}
    return Reservation(owner=owner, **own)


def _values(row: Reservation) -> dict[str, Any]:
    owner = {name: getattr(row.owner, name) for name in _OWNER} | {"scope": str(row.owner.scope)}
    return owner | {name: getattr(row, name) for name in _OWN} | {"status": str(row.status)}


async def _all(
    connection: Connection, query: Any, given: Mapping[str, Any] | None = None
) -> list[Reservation]:
    return [_row(found) for found in (await connection.execute(query, given or {})).mappings()]


async def get_or_create_installation(connection: Connection, new_id: str) -> str:
    """Return this installation's id; `fresh` becomes it when there is none yet."""
    asked = insert_on_conflict(installations, connection.dialect.name).values(place=1, id=new_id)
    await connection.execute(asked.on_conflict_do_nothing())
    return str((await connection.execute(select(installations.c.id))).scalar_one())


async def get(connection: Connection, label: str) -> Reservation | None:
    """Return the row of a label."""
    found = await _all(connection, _OF_LABEL, {"of": label})
    return found[0] if found else None


async def get_by_sandbox(connection: Connection, provider: str, sandbox: str) -> Reservation | None:
    """Return the row of a provider's sandbox."""
    which = and_(sandboxes.c.provider == provider, sandboxes.c.sandbox == sandbox)
    found = await _all(connection, select(*_COLUMNS).where(which))
    return found[0] if found else None


async def add(connection: Connection, row: Reservation) -> bool:
    """Insert a row; False when the label has one."""
    asked = insert_on_conflict(sandboxes, connection.dialect.name).values(_values(row))
    done = await connection.execute(asked.on_conflict_do_nothing().returning(sandboxes.c.label))
    return done.first() is not None


async def compare_and_set(connection: Connection, before: Reservation, after: Reservation) -> bool:
    """Write `after` over the row if it still has the lock_version of `before`."""
    values = _values(after)
    if before.used_at == after.used_at:  # a touch changes these without a new lock_version
        del values["used_at"], values["conversation"]
    changed = await connection.execute(
        update(sandboxes)
        .where(sandboxes.c.label == before.label, sandboxes.c.lock_version == before.lock_version)
        .values(values)
    )
    return changed.rowcount == 1


async def delete_reservation(connection: Connection, row: Reservation) -> bool:
    """Delete the row if it still has this lock_version."""
    done = await connection.execute(
        delete(sandboxes).where(sandboxes.c.label == row.label, sandboxes.c.lock_version == row.lock_version)
    )
    return done.rowcount == 1


async def touch(connection: Connection, label: str, conversation: str, now: datetime) -> None:
    """Reset the idle timer."""
    await connection.execute(
        update(sandboxes).where(sandboxes.c.label == label).values(used_at=now, conversation=conversation)
    )


async def list_all(connection: Connection) -> list[Reservation]:
    """Return all rows, oldest use first."""
    return await _all(connection, select(*_COLUMNS).order_by(sandboxes.c.used_at))


async def list_live(connection: Connection, *, ending: str) -> list[Reservation]:
    """Return rows with an instance or in creation, and others whose label ends so; oldest use first."""
    may_have_instance = sandboxes.c.sandbox.is_not(None) | (
        sandboxes.c.status != str(ReservationStatus.READY)
    )
    which = may_have_instance | sandboxes.c.label.endswith(ending, autoescape=True)
    return await _all(connection, select(*_COLUMNS).where(which).order_by(sandboxes.c.used_at))


async def list_unsaved(connection: Connection, provider: str) -> list[Reservation]:
    """Return a provider's rows whose instance was used since its newest snapshot, oldest use first."""
    is_unsaved = sandboxes.c.snapshot_at.is_(None) | (sandboxes.c.snapshot_at < sandboxes.c.used_at)
    is_kept = sandboxes.c.persistent & sandboxes.c.sandbox.is_not(None)
    which = (sandboxes.c.provider == provider) & is_kept & is_unsaved
    return await _all(connection, select(*_COLUMNS).where(which).order_by(sandboxes.c.used_at))


async def list_for_account(
    connection: Connection, account: str, *, after: str = "", limit: int = 50
) -> Sequence[Reservation]:
    """Return an account's rows by label."""
    query = select(*_COLUMNS).where(sandboxes.c.account == account, sandboxes.c.label > after)
    return await _all(connection, query.order_by(sandboxes.c.label).limit(limit))


async def list_for_record(connection: Connection, account: str, record: str) -> Sequence[Reservation]:
    """Return the rows of a sandbox record or a workspace."""
    which = or_(sandboxes.c.record == record, sandboxes.c.workspace == record)
    return await _all(connection, select(*_COLUMNS).where(sandboxes.c.account == account, which))


async def list_running_jobs(connection: Connection, row: Reservation) -> Sequence[str]:
    """Return the ids of the jobs that run in a row's sandbox."""
    running = select(jobs.c.id).where(
        jobs.c.sandbox == row.sandbox, jobs.c.provider == row.provider, jobs.c.state == "running"
    )
    return [str(found.id) for found in await connection.execute(running)]


async def count_running_jobs(connection: Connection, account: str) -> Mapping[tuple[str, str], int]:
    """Return how many jobs of an account run, by provider and the provider's id of the sandbox."""
    place = (jobs.c.provider, jobs.c.sandbox)
    query = select(*place, func.count()).where(jobs.c.account == account, jobs.c.state == "running")
    found = (await connection.execute(query.group_by(*place))).all()
    return {(str(provider), str(sandbox)): int(number) for provider, sandbox, number in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRow:
    """The current holder of a lock, which may have died without releasing it."""

    holder: str
    fence: int
    expires_at: datetime


async def acquire_lock(
    connection: Connection,
    label: str,
    *,
    holder: str,
    now: datetime,
    ttl: float,
    abandoned: LockRow | None = None,
) -> int | None:
    """Acquire the lock of a label if it is free or expired; returns its fence.

    `abandoned` is a lock whose holder is known to be dead; it counts as free unless it was renewed since.
    """
    until = now + timedelta(seconds=ttl)
    fresh = insert_on_conflict(sandbox_leases, connection.dialect.name).values(
        label=label, holder=holder, fence=1, expires_at=until
    )
    made = await connection.execute(fresh.on_conflict_do_nothing().returning(sandbox_leases.c.fence))
    if made.first() is not None:
        return 1
    lease = sandbox_leases.c
    free = or_(lease.holder.is_(None), lease.holder == holder, lease.expires_at < now)
    if abandoned is not None:
        free = or_(free, and_(lease.fence == abandoned.fence, lease.expires_at == abandoned.expires_at))
    taken = await connection.execute(
        update(sandbox_leases)
        .where(sandbox_leases.c.label == label, free)
        .values(holder=holder, fence=sandbox_leases.c.fence + 1, expires_at=until)
        .returning(sandbox_leases.c.fence)
    )
    fence: int | None = taken.scalar_one_or_none()
    return fence


async def get_lock(connection: Connection, label: str) -> LockRow | None:
    """Return the holder of a label's lock; None when it was released."""
    lease = sandbox_leases.c
    found = await connection.execute(
        select(lease.holder, lease.fence, lease.expires_at).where(
            lease.label == label, lease.holder.is_not(None)
        )
    )
    row = found.one_or_none()
    return LockRow(**row._mapping) if row else None  # noqa: SLF001 - SQLAlchemy's public name of it


async def renew_lock(connection: Connection, label: str, fence: int, *, until: datetime) -> bool:
    """Extend a lock; returns False when another holder has acquired it."""
    renewed = await connection.execute(
        update(sandbox_leases)
        .where(
            sandbox_leases.c.label == label,
            sandbox_leases.c.fence == fence,
            sandbox_leases.c.holder.is_not(None),
        )
        .values(expires_at=until)
    )
    return renewed.rowcount == 1


async def release_lock(connection: Connection, label: str, fence: int) -> None:
    """Release a lock; the row keeps its fence, so that the next fence is higher."""
    await connection.execute(
        update(sandbox_leases)
        .where(sandbox_leases.c.label == label, sandbox_leases.c.fence == fence)
        .values(holder=None)
    )


async def delete_locks_before(connection: Connection, *, before: datetime) -> None:
    """Delete locks that have been free for long."""
    await connection.execute(delete(sandbox_leases).where(sandbox_leases.c.expires_at < before))


async def count_by_state(connection: Connection) -> Mapping[str, int]:
    """Count the sandboxes by state."""
    state = func.count()
    running = sandboxes.c.active_since.is_not(None)
    found = await connection.execute(
        select(running.label("active"), sandboxes.c.paused, state.label("many")).group_by(
            running, sandboxes.c.paused
        )
    )
    counted = {"active": 0, "suspended": 0, "cold": 0}
    for row in found:
        counted["active" if row.active else "suspended" if row.paused else "cold"] += row.many
    return counted
