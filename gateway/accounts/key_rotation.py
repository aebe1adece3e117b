"""A new secret key takes the place of an old one: everything sealed is sealed anew, while we run."""

from __future__ import annotations

import structlog

from delivery.database.engine import Database
from gateway.accounts.vault import DecryptionFailed, Vault, associated_data
from gateway.store.accounts import encrypted_columns

log = structlog.get_logger(__name__)

_REENCRYPT = (
    encrypted_columns.reencrypt_records,
    encrypted_columns.reencrypt_endpoints,
    encrypted_columns.reencrypt_jobs,
    encrypted_columns.reencrypt_idempotency,
    encrypted_columns.reencrypt_key_checks,
)


async def reencrypt_all(database: Database, vault: Vault) -> int:
    """Seal everything with the first key of the ring; returns how many rows were renewed.

    Batches are short transactions, so that the gateway goes on meanwhile. What cannot be opened, because
    its key is gone, stays as it is and is told in the log. After this the old keys may leave the ring.
    """

    def renew(table: str, row: str, field: str, envelope: str) -> str | None:
        if not envelope:
            return None
        try:
            return (
                None
                if vault.is_current(envelope)
                else vault.reencrypt(associated_data(table, row, field), envelope)
            )
        except DecryptionFailed as error:
            log.error("secret.decryption_failed", table=table, row=row, error=str(error))  # noqa: TRY400
            return None

    renewed = 0
    for batch in _REENCRYPT:
        after: str | None = ""
        while after is not None:
            async with database.begin() as connection:
                after, changed = await batch(connection, after, renew)
            renewed += changed
    return renewed
