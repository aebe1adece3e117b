"""Users of a NATS server who may only read the events of one account.

A user is an Ed25519 key pair (an "nkey"): the server's file has the public key, and the program signs with
the seed.
"""

from __future__ import annotations

import base64
import json
from binascii import crc_hqx
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from delivery.events.public_subjects import account_subjects

_SEED_PREFIX = 18 << 3
_USER_PREFIX = 20 << 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsUser:
    """A user for an account's programs. `subject` is what the user may subscribe to."""

    public_key: str
    seed: str = field(repr=False)
    subject: str

    def server_entry(self) -> str:
        """Return the user for the list `authorization.users` of a nats-server's configuration."""
        permissions = f'{{ publish: {{ deny: ">" }}, subscribe: {{ allow: [{json.dumps(self.subject)}] }} }}'
        return f"{{ nkey: {self.public_key}, permissions: {permissions} }}"


def make_nats_user(account: str) -> NatsUser:
    """Make a key pair for a reader of an account's events; raises ValueError for a wrong id."""
    subject = account_subjects(account)
    key = Ed25519PrivateKey.generate()
    seed, public = key.private_bytes_raw(), key.public_key().public_bytes_raw()
    seed_prefix = bytes([_SEED_PREFIX | _USER_PREFIX >> 5, (_USER_PREFIX & 31) << 3])
    return NatsUser(
        public_key=_encode(bytes([_USER_PREFIX]) + public), seed=_encode(seed_prefix + seed), subject=subject
    )


def _encode(raw: bytes) -> str:
    """Return the text form of a key: base32 of the bytes and their checksum."""
    checksum = crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + checksum).decode().rstrip("=")
