"""A new conversation in a chat thread: on request (`/new`), after a time without messages, or daily."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from gateway.conversations.notices import post_notice
from gateway.store.accounts import accounts
from gateway.store.conversations import conversations, listing, room_messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import turns

RESET_NOTICE = "Nothing was said here for a while, so a new conversation begins. The earlier one is kept."


async def begin_again(tx: Transaction, conversation: Conversation) -> None:
    """Have the next message of the chat thread begin a new conversation."""
    await conversations.detach_address(tx.connection, conversation.id)
    if conversation.address is not None:
        address = Address.decode(conversation.address)
        await room_messages.delete_thread(tx.connection, address.destination, address.thread or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReset:
    """When a chat thread's conversation ends: after some seconds without messages, and daily at an hour.

    `after` 0 and `daily` None or -1: never. `timezone` None: that of the account, or else the operator's.
    """

    after: int = 0
    daily: int | None = None
    timezone: str | None = None

    @property
    def is_daily(self) -> bool:
        """Whether it ends at an hour of the day."""
        return self.daily is not None and self.daily >= 0

    def __bool__(self) -> bool:
        return self.after > 0 or self.is_daily


def last_reset(reset: SessionReset, now: datetime, timezone: str) -> datetime | None:
    """Return the newest time at which a conversation that was silent since then has ended; None: never."""
    moments = [now - timedelta(seconds=reset.after)] if reset.after else []
    if reset.daily is not None and reset.daily >= 0:
        zone = ZoneInfo(timezone)
        today = now.astimezone(zone).date()
        days = (today, today - timedelta(days=1))
        hours = (datetime.combine(day, time(reset.daily), tzinfo=zone).astimezone(UTC) for day in days)
        moments += [next(hour for hour in hours if hour <= now)]
    return max(moments, default=None)


async def reset_if_due(
    tx: Transaction, account: str, address: Address, reset: SessionReset, timezone: str
) -> None:
    """Begin a new conversation if the thread's last one has ended; `timezone` is the operator's.

    Not while a turn is open, such as one that waits for an approval, or while a person handles it.
    """
    if not reset:
        return
    found = await conversations.get_by_address(tx.connection, account, address.key)
    view = None if found is None else await listing.get(tx.connection, account, found.id)
    if found is None or view is None:
        return
    zone = reset.timezone or timezone
    if reset.is_daily and reset.timezone is None:
        owner = await accounts.get_account(tx.connection, account_id=account)
        zone = (owner.timezone if owner else None) or timezone
    ended = last_reset(reset, utc_now(), zone)
    if ended is None or view.active_at > ended:
        return
    if found.handover_by is None and not await turns.list_open(tx.connection, found.id):
        await post_notice(tx, found.id, RESET_NOTICE, urgent=True)
        await begin_again(tx, found)
