"""Links to a port of a live sandbox through the gateway: signed, for one sandbox, until a time.

The signed array has the account, the id of the key that requested the link (empty for an agent's), the
sandbox, the port and the time of expiry in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.accounts.signed_tokens import SignedTokens

PURPOSE = "links to ports of sandboxes"
PATH = "/views"
PAGE = "vnc.html?autoconnect=1&resize=scale"
"""The page of noVNC, which connects to the address below which it was opened."""

DESKTOP_PORT = 8080
DEFAULT_MINUTES = 60
MAX_MINUTES = 24 * 60
_FIELDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLink:
    """A permission to use one port of one sandbox until a time."""

    account: str
    key: str
    sandbox: str
    port: int
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLinks:
    """Creates and verifies links; they are absolute if `public_url` is set, else paths."""

    keys: Sequence[bytes] = field(repr=False)
    public_url: str | None = None

    def issue(
        self, account: str, sandbox: str, *, port: int, minutes: int, now: datetime, key: str = ""
    ) -> tuple[str, datetime]:
        """Return a link to a sandbox's desktop, and the time at which it expires."""
        expires = (now + timedelta(minutes=minutes)).replace(microsecond=0)
        text = SignedTokens(keys=self.keys).sign([account, key, sandbox, port, int(expires.timestamp())])
        return f"{(self.public_url or '').rstrip('/')}{PATH}/{text}/{PAGE}", expires

    def verify(self, text: str, *, now: datetime) -> ViewLink | None:
        """Return a link that is signed and has not expired."""
        values = SignedTokens(keys=self.keys).verify(text, count=_FIELDS)
        if values is None:
            return None
        account, key, sandbox, port, expires = values
        link = ViewLink(account=account, key=key, sandbox=sandbox, port=port, expires=expires)
        return link if link.expires > now.timestamp() else None
