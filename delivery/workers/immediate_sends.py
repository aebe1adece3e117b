"""Sends that are claimed in the transaction that creates their delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from delivery.broker.keyed_worker import KeyedWorker, ReservedKey
from delivery.broker.port import Lease, Leases
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import attempt_store
from delivery.deliveries.immediate import DeliveryClaims, ImmediateWork
from delivery.deliveries.store import DueDelivery, NewDelivery

SendFirst = Callable[[DueDelivery, str, Lease], Awaitable[None]]
"""Send a delivery whose first attempt is recorded, and then what else is due at its destination."""


class ImmediateSend(ImmediateWork):
    """A delivery whose first attempt is part of a transaction."""

    step = "delivery.claim"

    def __init__(
        self, place: ReservedKey, due: DueDelivery, send: SendFirst, abandon: Callable[[str], None]
    ) -> None:
        self._place = place
        self._due = due
        self._send = send
        self._abandon = abandon

    def start(self) -> None:
        """Send the delivery."""
        self._place.start(partial(self._send, self._due))

    def release(self) -> None:
        """Give the place back; if the delivery was inserted after all, its first attempt was none."""
        self._abandon(self._due.delivery.id)
        self._place.release()


class ImmediateSends(DeliveryClaims):
    """Claims deliveries of a worker whose destinations have an order.

    It claims those whose lease can be acquired without the broker. `abandon` receives the ids of deliveries
    whose attempt was recorded, perhaps, and never made.
    """

    def __init__(
        self,
        worker: KeyedWorker,
        leases: Leases,
        send: SendFirst,
        *,
        abandon: Callable[[str], None],
        bot_destination: Callable[[str], str],
    ) -> None:
        self._worker = worker
        self._leases = leases
        self._send = send
        self._abandon = abandon
        self._bot_destination = bot_destination

    async def claim(self, connection: Connection, planned: NewDelivery) -> ImmediateWork | None:
        """Insert a delivery and its first attempt if nothing else is to be sent to its destination."""
        place = self._worker.reserve(
            planned.account, planned.destination, self._leases, f"d:{planned.destination}"
        )
        if place is None:
            return None
        try:
            due = await self._begin(connection, planned)
        except BaseException:
            place.release()
            raise
        if due is None:
            place.release()
            return None
        return ImmediateSend(place, due, self._send, self._abandon)

    async def _begin(self, connection: Connection, planned: NewDelivery) -> DueDelivery | None:
        now, bot = utc_now(), self._bot_destination(planned.destination)
        return await attempt_store.begin_first_attempt(connection, planned, bot=bot, now=now)
