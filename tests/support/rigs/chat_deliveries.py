"""A delivery to a chat, as the router plans it for an event."""

from __future__ import annotations

from channels.message import Address
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery
from delivery.events.event import Event


def chat_delivery(event: Event, part: Part, *, number: int = 1, place: int = 0) -> Delivery:
    """Return the first attempt at a part of an event's message, to room 42 of the channel `chn_1`."""
    return Delivery(
        id=f"dlv_{number}",
        account="acc_1",
        event_id=event.id,
        event_type=str(event.type),
        event_time=event.time,
        conversation="cnv_1",
        kind="chat",
        target=Address(channel="chn_1", room="42").encode(),
        part=place,
        body=encode_part(part),
        attempt=1,
        turn="trn_1",
    )
