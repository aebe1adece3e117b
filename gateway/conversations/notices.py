"""Notices: messages of the gateway itself in a conversation, which are not a turn's reply."""

from __future__ import annotations

from delivery.database.clock import utc_now
from delivery.deliveries import ordering
from delivery.deliveries.part import decode_part
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType, new_id
from gateway.store.conversations import messages
from gateway.store.conversations.messages import MessageRow

MAX_QUOTED = 80
"""Characters of a delayed answer that its notice quotes."""


async def post_notice(
    tx: Transaction,
    conversation: str,
    text: str,
    *,
    turn: str | None = None,
    message: str | None = None,
    reply_to: str = "",
    urgent: bool = False,
) -> None:
    """Add a message of the gateway to a conversation and deliver it on the conversation's routes.

    An `urgent` one answers a command, or reports a delay: it waits for no result that is to be delivered.
    `reply_to` is the platform's id of the message that it answers; `message` is its own id, if given.
    """
    message = message or new_id("msg")
    data: dict[str, object] = {"message": message, "role": "notice", "text": text, "files": []}
    if reply_to:
        data["reply_to"] = reply_to
    if urgent:
        data["urgent"] = True
    tx.emit(Event.now(EventType.MESSAGE_COMPLETED, conversation, data, turn=turn))
    row = MessageRow(
        id=message,
        role="notice",
        author="",
        text=text,
        turn=turn,
        attachments=[],
        created_at=utc_now(),
    )
    await messages.add_message(tx.connection, conversation, row)


async def report_parked(tx: Transaction, due: DueDelivery) -> None:
    """Report once that a delivery of a conversation is parked; urgent and quiet ones are not."""
    conversation = due.delivery.conversation
    message = f"msg_{due.delivery.id.removeprefix('dlv_')}"
    key = due.ordering_key
    if not conversation or ordering.is_urgent(key) or ordering.is_quiet(key):
        return
    if await messages.get_by_id(tx.connection, message) is None:
        text = render_parked(due.delivery.body)
        await post_notice(tx, conversation, text, turn=due.delivery.turn, message=message, urgent=True)


def render_parked(body: bytes) -> str:
    """Return the notice that the part of a reply in this body is delayed."""
    part = decode_part(body)
    if part.file is not None:
        what = f"The file {quoted(part.file.name)} is delayed"
    else:
        what = f"An answer is delayed. It begins {quoted(part.text)}"
    return (
        f"{what}. The platform has not accepted it yet. Delivery is retried for one day. "
        "Later messages are sent now."
    )


def quoted(text: str) -> str:
    """Return the beginning of a text as a code span of one line."""
    line = " ".join(text.replace("`", "'").split())
    return f"`{line if len(line) <= MAX_QUOTED else line[: MAX_QUOTED - 1] + '…'}`"
