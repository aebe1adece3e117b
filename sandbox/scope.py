"""Which files belong together: the key of a workspace, made of ids and never showing them."""

from __future__ import annotations

import base64
import hashlib

LENGTH = 26
"""130 bits in base32: short enough for a path component, too many to collide."""


def digest(*parts: str) -> str:
    """Return a lower-case base32 key of `parts`; different tuples never give one key.

    Each part goes in with its length before it, so that ("a", "bc") and ("ab", "c") differ.
    """
    sum_ = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        sum_.update(len(encoded).to_bytes(8, "big") + encoded)
    return base64.b32encode(sum_.digest()).decode().lower()[:LENGTH]


def namespace(account: str, workspace: str) -> str:
    """Return the namespace of an account's workspace: a path component that gives away neither id."""
    return digest("workspace", account, workspace)
