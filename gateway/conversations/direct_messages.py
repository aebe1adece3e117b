"""Words outside any conversation, such as what a stranger is told: delivered, in no stream and no history."""

from __future__ import annotations

from channels.message import Address
from delivery.broker.port import Queue
from delivery.deliveries import store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import Planned
from delivery.deliveries.transactions import Entry
from delivery.events.event import Event, Kind


async def say_aside(entry: Entry, account: str, address: Address, text: str, *, key: str) -> None:
    """Say something in a chat with the caller's transaction; `key` tells it from all else said there."""
    event = Event.now(
        Kind.MESSAGE_COMPLETED, "", {"text": text}, event_id=f"evt_{address.channel}_{key}"[:80]
    )
    planned = Planned(
        account=account,
        event=event,
        kind=RouteKind.CHAT,
        target=address.dump(),
        destination=address.destination,
        part=0,
        body=encode_part(Part(text=text)),
    )
    await store.plan(entry.connection, [planned])
    entry.wake(Queue.DELIVER, address.destination)
