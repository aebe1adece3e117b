"""The configuration of a delivery worker: how one kind of delivery is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from delivery.broker.port import WorkQueue
from delivery.database.engine import Connection
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.port import Delivery, Sink
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction

SLOW_SECONDS = 3.0
"""Seconds after which a send no longer holds other sequences of its destination.

A shorter time would have several sends of one chat wait for the chat's rate limit.
"""


async def _body_as_created(delivery: Delivery) -> bytes:
    return delivery.body


async def _never_ordered(_connection: Connection, _destination: str) -> bool:
    return False


async def _ignore_parked(_tx: Transaction, _due: DueDelivery) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """How one kind of delivery is sent.

    `ordered`: deliveries with one ordering key are sent in order, at all destinations or at those of
    `ordered_at`. A send slower than `slow_seconds` no longer holds other keys. `on_parked` is called in the
    transaction that parks a delivery. `repeatable`: sending twice does no harm. `complete_body` returns the
    final body before the first attempt. `bot_destination` returns the destination whose pauses apply to this
    one too, and `on_bot_paused` is called with the seconds of such a pause. `resolves`: the sink can find out
    whether an uncertain attempt arrived.
    """

    queue: WorkQueue
    sink: Sink
    schedule: RetrySchedule
    ordered: bool
    repeatable: bool
    ordered_at: Callable[[Connection, str], Awaitable[bool]] = _never_ordered
    complete_body: Callable[[Delivery], Awaitable[bytes]] = _body_as_created
    policy: Callable[[Delivery], AmbiguityPolicy] = lambda _delivery: AmbiguityPolicy.AT_LEAST_ONCE
    resolves: Callable[[Delivery], bool] = lambda _delivery: False
    bot_destination: Callable[[str], str] = lambda _destination: ""
    on_bot_paused: Callable[[str, float], None] = lambda _destination, _seconds: None
    on_parked: Callable[[Transaction, DueDelivery], Awaitable[None]] = _ignore_parked
    slow_seconds: float = SLOW_SECONDS
