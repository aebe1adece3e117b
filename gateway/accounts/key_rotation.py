"""Re-encrypt all secrets with a new secret key while the gateway runs."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from delivery.database.engine import Database
from gateway.accounts.vault import DecryptionFailed, Vault, associated_data
from gateway.store.accounts import encrypted_columns

log = structlog.get_logger(__name__)

_REENCRYPT = (
    encrypted_columns.reencrypt_records,
    encrypted_columns.reencrypt_endpoints,
    encrypted_columns.reencrypt_channel_secrets,
    encrypted_columns.reencrypt_mcp_sign_ins,
    encrypted_columns.reencrypt_ended_sign_ins,
    encrypted_columns.reencrypt_jobs,
    encrypted_columns.reencrypt_triggers,
    encrypted_columns.reencrypt_idempotency,
    encrypted_columns.reencrypt_key_checks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSecret:
    """A stored secret that no key of the ring decrypts: where it is and why."""

    table: str
    row: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reencryption:
    """How many rows were re-encrypted, and the secrets that were left unchanged."""

    renewed: int
    unreadable: tuple[UnreadableSecret, ...]


async def reencrypt_all(database: Database, vault: Vault) -> Reencryption:
    """Encrypt everything with the first key of the ring; returns what was changed and what could not be.

    Each batch is a short transaction, so that the gateway continues to work. A value that cannot be
    decrypted is left unchanged and returned. Afterwards the old keys can be removed from the ring.
    """
    unreadable: list[UnreadableSecret] = []

    def renew(table: str, row: str, field: str, envelope: str | bytes) -> str | None:
        if envelope in ("", b""):
            return None
        try:
            fresh = vault.reencrypt(associated_data(table, row, field), envelope)
            return None if vault.is_current(envelope) else fresh
        except DecryptionFailed as error:
            found = UnreadableSecret(table=table, row=row, field=field, reason=str(error))
            unreadable.append(found)
            return None

    renewed = 0
    for batch in _REENCRYPT:
        after: str | None = ""
        while after is not None:
            async with database.begin() as connection:
                after, changed = await batch(connection, after, renew)
            renewed += changed
    return Reencryption(renewed=renewed, unreadable=tuple(unreadable))


async def reencrypt_at_start(database: Database, vault: Vault) -> None:
    """Encrypt everything with the first key of the ring, and log what cannot be decrypted."""
    done = await reencrypt_all(database, vault)
    for one in done.unreadable:
        log.error("secret.decryption_failed", table=one.table, row=one.row, field=one.field, error=one.reason)
