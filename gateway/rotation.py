"""A new secret key takes the place of an old one: everything sealed is sealed anew, while we run."""

from __future__ import annotations

import structlog

from delivery.database import Database
from gateway.secrets import Unreadable, Vault, context
from gateway.store import sealed

log = structlog.get_logger(__name__)

_TABLES = (
    sealed.renew_records,
    sealed.renew_endpoints,
    sealed.renew_jobs,
    sealed.renew_replies,
    sealed.renew_marks,
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
