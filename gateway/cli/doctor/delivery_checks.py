"""What `dovecote doctor` reports of deliveries that wait or were given up, of all accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
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

MAX_NAMES = 1000
"""Accounts whose names are read; others are named by their ids."""

_WORDS = {"parked": "{} parked", "ambiguous": "{} may have arrived", "dead": "{} dead"}
_REMEDY = (
    "remove the cause; `dovecote deliveries list` shows them, and `deliveries retry ID` sends one again now"
)
_REMEDY_OF_ACCOUNT = _REMEDY + "; `dovecote accounts key` gives you a key of the account"


def check_deliveries(settings: Settings) -> Iterator[DoctorCheck]:
    """Warn of messages that platforms or webhooks do not take, with the reasons."""
    try:
        with translate_database_errors(settings):
            found = asyncio.run(_list_reasons(settings))
    except CommandFailed:
        return  # another check reports it
    if found is None:
        return
    reasons, names = found
    is_shared = len(names) > 1
    for one in reasons:
        count = _WORDS.get(one.state, "{} wait").format(one.count)
        whose = f" in the account {names.get(one.account, one.account)}" if is_shared else ""
        remedy = _REMEDY_OF_ACCOUNT if is_shared else _REMEDY
        yield DoctorCheck(SUBJECT, CheckState.WARNING, f"{count}{whose}: {one.error}", remedy)
    if not reasons:
        yield passed(SUBJECT, "none waits after a failure")


async def _list_reasons(settings: Settings) -> tuple[Sequence[FailureReason], Mapping[str, str]] | None:
    """Return the reasons, and names of accounts by id; None before this version has run on the database."""
    from delivery.database.engine import Database
    from delivery.deliveries import queries
    from gateway.store.accounts import accounts

    if not (await database_status(settings)).up_to_date:
        return None
    database = Database(settings.database)
    try:
        async with database.read() as connection:
            reasons = await queries.list_failure_reasons(connection, limit=MAX_REASONS)
            known = await accounts.list_accounts(connection, after="", limit=MAX_NAMES)
            return reasons, {one.id: one.name for one in known}
    finally:
        await database.close()
