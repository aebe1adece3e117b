"""Tickets for event streams: signed, short-lived permissions to read one conversation.

The signed array has the account, the id of the key that requested the ticket, the conversation and the time
of expiry in Unix seconds. A ticket goes into a URL, because a browser's EventSource cannot send headers; a
key never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.accounts import signed_tokens
from gateway.accounts.signed_tokens import SignedTokens

PURPOSE = "tickets of event streams"
LIFETIME = timedelta(minutes=10)
MAX_LENGTH = signed_tokens.MAX_LENGTH
_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTicket:
    """A permission to read one conversation until a time; it ends earlier with the key."""

    account: str
    key: str
    conversation: str
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTickets:
    """Signs and verifies tickets. The first of `keys` signs, all of them verify (keys rotate)."""

    keys: Sequence[bytes] = field(repr=False)

    def issue(self, account: str, key: str, conversation: str, *, now: datetime) -> tuple[str, datetime]:
        """Return a ticket's text and the time at which it expires."""
        expires = (now + LIFETIME).replace(microsecond=0)
        values: list[str | int] = [account, key, conversation, int(expires.timestamp())]
        return SignedTokens(keys=self.keys).sign(values), expires

    def verify(self, text: str, *, now: datetime) -> StreamTicket | None:
        """Return a ticket that is signed and has not expired."""
        values = SignedTokens(keys=self.keys).verify(text, count=_FIELDS)
        if values is None:
            return None
        account, key, conversation, expires = values
        ticket = StreamTicket(account=account, key=key, conversation=conversation, expires=expires)
        return ticket if ticket.expires > now.timestamp() else None
