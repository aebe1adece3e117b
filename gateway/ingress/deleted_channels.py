"""Ends what is still to be sent in a channel after its deletion, such as a send that was under way then."""

from __future__ import annotations

from channels.message import Address
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.routes import CHANNEL_DELETED
from gateway.store.accounts import records


class DeletionCheckingSink(Sink):
    """Ends a delivery that reached no platform if its channel is deleted, as the deletion ends the others."""

    def __init__(self, inner: Sink, database: Database) -> None:
        self._inner = inner
        self._database = database

    async def send(self, delivery: Delivery) -> Outcome:
        """Send once."""
        outcome = await self._inner.send(delivery)
        if outcome.kind is OutcomeKind.RETRY and outcome.unreached and await self._is_deleted(delivery):
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=CHANNEL_DELETED, address_dead=True)
        return outcome

    async def _is_deleted(self, delivery: Delivery) -> bool:
        channel = Address.decode(delivery.target).channel
        try:
            async with self._database.read() as connection:
                return await records.get_by_id(connection, channel) is None
        except DatabaseUnavailable:
            return False
