"""Signed links to files; each expires and opens one file only."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from delivery.database.clock import utc_now
from delivery.events.event import rfc3339
from gateway.store.conversations.files import FileRow

PURPOSE = "links to files"
_MAX_EXPIRY_DIGITS = 12
"""Digits that an expiry time may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedLinks:
    """Creates and verifies links. The first of `keys` signs, all of them verify (keys rotate)."""

    keys: Sequence[bytes] = field(repr=False)
    public_url: str | None = None
    lifetime: timedelta = timedelta(days=7)

    def create(self, file: str, name: str, *, expires: datetime) -> str:
        """Return the link to a file: absolute if `public_url` is set, else a path."""
        moment = str(int(expires.timestamp()))
        signature = _signature(self.keys[0], file, moment)
        path = f"/files/{quote(file)}/{quote(name, safe='')}?expires={moment}&signature={signature}"
        return f"{(self.public_url or '').rstrip('/')}{path}"

    def is_valid(self, file: str, expires: str, signature: str, *, now: datetime) -> bool:
        """Return whether a link is valid and not expired; comparisons take constant time."""
        fits = [
            hmac.compare_digest(
                _signature(key, file, expires).encode(), signature.encode("utf-8", "surrogatepass")
            )
            for key in self.keys
        ]
        plain = expires.isascii() and expires.isdigit() and len(expires) <= _MAX_EXPIRY_DIGITS
        return any(fits) and plain and int(expires) > now.timestamp()

    def parse_url(self, url: str, *, now: datetime) -> str | None:
        """Return the file id of one of our links, None for any other address."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        ours = urlsplit(self.public_url or "")
        if (parts.scheme, parts.netloc) not in {("", ""), (ours.scheme, ours.netloc)}:
            return None
        names = parts.path.removeprefix(ours.path.rstrip("/")).split("/")
        if len(names) != 4 or names[:2] != ["", "files"]:  # noqa: PLR2004 - /files/ID/NAME
            return None
        given = parse_qs(parts.query)
        file, expires, signature = (
            unquote(names[2]),
            given.get("expires", [""])[0],
            given.get("signature", [""])[0],
        )
        return file if self.is_valid(file, expires, signature, now=now) else None

    def to_response(self, row: FileRow, *, now: datetime | None = None) -> dict[str, Any]:
        """Return a file as events, snapshots and responses contain it, with a new link."""
        expires = (now or utc_now()) + self.lifetime
        shape: dict[str, Any] = {
            "id": row.id,
            "name": row.name,
            "size": row.size,
            "type": row.type,
            "sha256": row.sha256,
            "url": self.create(row.id, row.name, expires=expires),
            "expires": rfc3339(expires),
        }
        return shape | _non_empty(path=row.path, caption=row.caption)


def _non_empty(**words: str) -> dict[str, str]:
    return {name: word for name, word in words.items() if word}


def _signature(key: bytes, file: str, expires: str) -> str:
    content = f"{file}\n{expires}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.digest(key, content, sha256)).rstrip(b"=").decode()
