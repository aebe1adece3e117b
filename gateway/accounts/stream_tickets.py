"""Tickets for event streams: signed, short-lived permissions to read one conversation.

A ticket is `<payload>.<signature>`, both base64url. The payload is a JSON array: the account, the id of the
key that requested it, the conversation and the time of expiry in Unix seconds. It goes into a URL, because a
browser's EventSource cannot send headers; a key never does.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

PURPOSE = "tickets of event streams"
LIFETIME = timedelta(minutes=10)
MAX_LENGTH = 600
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
        shape = [account, key, conversation, int(expires.timestamp())]
        payload = json.dumps(shape, separators=(",", ":")).encode()
        return f"{_encode(payload)}.{_encode(self._signature(self.keys[0], payload))}", expires

    def verify(self, text: str, *, now: datetime) -> StreamTicket | None:
        """Return a ticket that is signed and has not expired; comparisons take constant time."""
        payload, signature = (_decode(part) for part in _halves(text))
        fits = [hmac.compare_digest(self._signature(key, payload), signature) for key in self.keys]
        if not any(fits):
            return None
        ticket = _parse(payload)
        return ticket if ticket is not None and ticket.expires > now.timestamp() else None

    @staticmethod
    def _signature(key: bytes, payload: bytes) -> bytes:
        return hmac.digest(key, payload, sha256)


def _halves(text: str) -> tuple[str, str]:
    payload, _, signature = text.partition(".") if len(text) <= MAX_LENGTH else ("", "", "")
    return payload, signature


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Return the bytes of canonical base64url; nothing for any other text."""
    try:
        raw = base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")
    except (ValueError, binascii.Error):
        return b""
    return raw if _encode(raw) == text else b""


def _parse(payload: bytes) -> StreamTicket | None:
    """Return the ticket of a signed payload."""
    shape = json.loads(payload)
    if not isinstance(shape, list) or len(shape) != _FIELDS:
        return None
    account, key, conversation, expires = shape
    return StreamTicket(account=account, key=key, conversation=conversation, expires=expires)
