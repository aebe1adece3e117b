"""Checkpoints: what SQL knows of a stream, by which the start and each check see what the stream has lost.

The epoch, the name of an incarnation of the stream, follows from the checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import structlog
from sqlalchemy import insert, select, update

from delivery.broker.message_codec import EPOCH_NUMBER
from delivery.broker.stream_config import EVENTS, StreamIdentity
from delivery.database.engine import Connection
from delivery.database.tables import epochs

_log = structlog.get_logger(__name__)

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCheckpoint:
    """The stored state of a stream: its creation time, highest seen seq and number of new epochs."""

    created: str
    high_water: int
    bumps: int


async def load_checkpoint(connection: Connection, stream: str = EVENTS) -> StreamCheckpoint | None:
    """Return the stored checkpoint of a stream, or None before the first one."""
    row = (await connection.execute(select(epochs).where(epochs.c.stream == stream))).one_or_none()
    if row is None:
        return None
    return StreamCheckpoint(created=row.created, high_water=row.high_water, bumps=row.bumps)


async def determine_epoch(
    connection: Connection,
    before: StreamCheckpoint | None,
    identity: StreamIdentity,
    *,
    stream: str = EVENTS,
    may_have_lost: bool = False,
) -> str:
    """Compare a stream with its checkpoint, store a new checkpoint, and return the epoch.

    `before` must have been read earlier than `identity`, because another replica may have stored a later
    position since. `may_have_lost`: the machine crashed while the broker ran, so its last second may be lost.
    """
    now = await load_checkpoint(connection, stream)
    if now is None:
        first = {"created": identity.created, "high_water": identity.last_seq, "bumps": 0}
        await connection.execute(insert(epochs).values(stream=stream, **first))
        return format_epoch(identity.created, 0)
    wanted = _next_checkpoint(before or now, now, identity, may_have_lost=may_have_lost)
    if wanted != now:
        await connection.execute(update(epochs).where(epochs.c.stream == stream).values(**asdict(wanted)))
    return format_epoch(wanted.created, wanted.bumps)


async def is_present(connection: Connection, epoch: str, *, stream: str = EVENTS) -> bool:
    """Return whether an epoch has not ended; if so, it does not end before this transaction does."""
    row = epochs.c.stream == stream
    stored = (await connection.execute(select(epochs).where(row).with_for_update(read=True))).one_or_none()
    return stored is not None and format_epoch(stored.created, stored.bumps) == epoch


def _next_checkpoint(
    before: StreamCheckpoint, now: StreamCheckpoint, identity: StreamIdentity, *, may_have_lost: bool
) -> StreamCheckpoint:
    """Return the checkpoint to store: a new incarnation, a new epoch of it, or progress only."""
    if is_another(now, identity):
        _log.warning("stream.replaced", reason="NATS has another event log than before, such as a new one")
        return StreamCheckpoint(created=identity.created, high_water=identity.last_seq, bumps=0)
    is_behind = fell_back(before, identity)
    if (is_behind or may_have_lost) and before.bumps == now.bumps:  # else another replica noticed it too
        _log.warning("stream.epoch_started", reason="the stream may have lost its last events")
        return replace(now, high_water=identity.last_seq, bumps=now.bumps + 1)
    return replace(now, high_water=max(now.high_water, identity.last_seq))


def is_another(before: StreamCheckpoint, identity: StreamIdentity) -> bool:
    """Return whether a stream is not the one that was known, as after its files were damaged."""
    return before.created != identity.created


def fell_back(before: StreamCheckpoint, identity: StreamIdentity, *, may_have_lost: bool = False) -> bool:
    """Return whether a stream of the same incarnation has lost its last events, or may have."""
    is_shorter = identity.last_seq < before.high_water
    return not is_another(before, identity) and (is_shorter or may_have_lost)


def format_epoch(created: str, bumps: int) -> str:
    """Return an epoch's short name; it never contains a dash, which ends the epoch in a cursor."""
    number = int((datetime.fromisoformat(created) - _UNIX_EPOCH).total_seconds() * 1_000_000)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{digits}{EPOCH_NUMBER}{bumps}" if bumps else digits
