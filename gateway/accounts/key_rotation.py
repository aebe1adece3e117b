"""A new secret key takes the place of an old one: everything sealed is sealed anew, while we run."""

from __future__ import annotations

import structlog

from delivery.database.engine import Database
from gateway.accounts.vault import Unreadable, Vault, context
from gateway.store.accounts import encrypted_columns

log = structlog.get_logger(__name__)

_TABLES = (
    encrypted_columns.renew_records,
    encrypted_columns.renew_endpoints,
    encrypted_columns.renew_jobs,
    encrypted_columns.renew_replies,
    encrypted_columns.renew_marks,
)


async def reseal(database: Database, vault: Vault) -> int:
    """Seal everything with the first key of the ring; returns how many rows were renewed.

    Batches are short transactions, so that the gateway goes on meanwhile. What cannot be opened, because
    its key is gone, stays as it is and is told in the log. After this the old keys may leave the ring.
    """

    def renew(table: str, row: str, field: str, envelope: str) -> str | None:
        if not envelope:
            return None
        try:
            return None if vault.is_current(envelope) else vault.renew(context(table, row, field), envelope)
        except Unreadable as error:
            log.error("secret.unreadable", table=table, row=row, error=str(error))  # noqa: TRY400
            return None

    renewed = 0
    for batch in _TABLES:
        after: str | None = ""
        while after is not None:
            async with database.begin() as connection:
                after, changed = await batch(connection, after, renew)
            renewed += changed
    return renewed
