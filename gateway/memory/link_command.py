"""The command `/link`: join a person's identities on several platforms by a one-time code."""

from __future__ import annotations

from collections.abc import Sequence

from channels.message import Author
from delivery.deliveries.transactions import Transaction
from gateway.accounts.persons import (
    CODE_LIFETIME,
    CannotLink,
    Sighting,
    issue_code,
    platform_of,
    redeem_code,
    see,
)
from gateway.store.accounts import persons
from gateway.store.conversations.conversations import Conversation

ONLY_DIRECT = "Write `/link` to me in a direct chat: a code that others read would join them to you."
WRONG_CODE = "This code is wrong, was used, or has expired. `/link` on the other platform gives a new one."


async def execute_link_command(
    tx: Transaction, conversation: Conversation, args: Sequence[str], *, by: Author
) -> str:
    """Execute `/link` of the person `by`, and return the reply."""
    platform = await platform_of(tx.connection, conversation)
    if platform is None or not conversation.direct or not by.id:
        return ONLY_DIRECT
    seen = Sighting(account=conversation.account, platform=platform, author=by.id, name=by.name)
    identity = await see(tx.connection, seen)
    if not args:
        code = await issue_code(tx.connection, identity)
        minutes = int(CODE_LIFETIME.total_seconds() // 60)
        return (
            f"Send me `/link {code}` in a direct chat on the other platform within {minutes} minutes. "
            "Your notes and files there and here are then the same."
        )
    try:
        person = await redeem_code(tx.connection, identity, args[0])
    except CannotLink as error:
        return f"Not linked: {error}."
    if person is None:
        return WRONG_CODE
    known = await persons.list_identities(tx.connection, [person.id])
    return f"Linked. You are now known as {', '.join(f'`{one.id}`' for one in known)}."
