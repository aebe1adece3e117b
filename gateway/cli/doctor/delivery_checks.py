"""What `dovecote doctor` reports of deliveries that wait or were given up, of all accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.cli.database import database_status, translate_database_errors
from gateway.cli.doctor.check import CheckState, DoctorCheck, passed
from gateway.cli.errors import CommandFailed

if TYPE_CHECKING:
    from delivery.deliveries.queries import FailureReason
    from gateway.config.settings import Settings

SUBJECT = "deliveries"
MAX_REASONS = 5
"""Reasons that are shown, the most frequent first."""

_WORDS = {"parked": "{} parked", "ambiguous": "{} may have arrived", "dead": "{} dead"}
_REMEDY = (
    "remove the cause; `dovecote deliveries list` shows them, and `deliveries retry ID` sends one again now"
)


def check_deliveries(settings: Settings) -> Iterator[DoctorCheck]:
    """Warn of messages that platforms or webhooks do not take, with the reasons."""
    try:
        with translate_database_errors(settings):
            found = asyncio.run(_list_reasons(settings))
    except CommandFailed:
        return  # another check reports it
    if found is None:
        return
    for one in found:
        count = _WORDS.get(one.state, "{} wait").format(one.count)
        yield DoctorCheck(SUBJECT, CheckState.WARNING, f"{count}: {one.error}", _REMEDY)
    if not found:
        yield passed(SUBJECT, "none waits after a failure")


async def _list_reasons(settings: Settings) -> Sequence[FailureReason] | None:
    """Return the reasons; None before a gateway of this version has run on the database."""
    from delivery.database.engine import Database
    from delivery.deliveries import queries

    if not (await database_status(settings)).up_to_date:
        return None
    database = Database(settings.database)
    try:
        async with database.read() as connection:
            return await queries.list_failure_reasons(connection, limit=MAX_REASONS)
    finally:
        await database.close()
