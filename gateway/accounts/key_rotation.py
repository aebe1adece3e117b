"""Re-encrypt all secrets with a new secret key while the gateway runs."""

from __future__ import annotations

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


async def reencrypt_all(database: Database, vault: Vault) -> int:
    """Encrypt everything with the first key of the ring; returns how many rows were changed.

    Each batch is a short transaction, so that the gateway continues to work. Values whose key is missing
    are left unchanged and logged. Afterwards the old keys can be removed from the ring.
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
