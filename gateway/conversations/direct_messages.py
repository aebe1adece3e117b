"""Direct messages outside any conversation, such as pairing codes: delivered, but in no stream or history."""

from __future__ import annotations

from channels.message import Address
from delivery.broker.port import WorkQueue
from delivery.deliveries import store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import NewDelivery
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from gateway.store.accounts import accounts


async def send_direct(tx: Transaction, account: str, address: Address, text: str, *, key: str) -> None:
    """Send a text to a chat in the caller's transaction, once for each `key`; raises RowDeleted."""
    await accounts.lock_against_deletion(tx.connection, account)
    event = Event.now(
        EventType.MESSAGE_COMPLETED, "", {"text": text}, event_id=f"evt_{address.channel}_{key}"[:80]
    )
    planned = NewDelivery(
        account=account,
        event=event,
        kind=RouteKind.CHAT,
        target=address.encode(),
        destination=address.destination,
        part=0,
        body=encode_part(Part(text=text)),
    )
    await store.create(tx.connection, [planned])
    tx.wake(WorkQueue.DELIVER, address.destination, account=account)
