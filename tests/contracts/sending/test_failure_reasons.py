"""`dovecote doctor` says which messages wait or were given up, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import insert

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from gateway.cli.doctor.check import CheckState
from gateway.cli.doctor.delivery_checks import check_deliveries
from gateway.config.settings import Settings
from gateway.store.tables import accounts
from migrated import migrated_data_directory

LACKS = "send: Missing Permissions (50013): the bot lacks the permission 'Send Messages' here; grant it"
STATES = [
    ("retrying", LACKS),
    ("retrying", LACKS),
    ("dead", "too long"),
    ("delivered", "once"),
    ("pending", None),
]


async def add_deliveries(url: str) -> None:
    """Add one delivery for each of STATES."""
    database, now = Database(url), utc_now()
    async with database.begin() as connection:
        for number, (state, error) in enumerate(STATES):
            values = {
                "id": f"dlv_{number}",
                "account": "acc_1",
                "event_id": f"evt_{number}",
                "event_type": "message.completed",
                "event_time": now,
                "kind": "chat",
                "target": Address(channel="chn_1", room="42").encode(),
                "destination": "42",
                "part": 0,
                "body": b"",
                "state": state,
                "error": error,
                "armed_at": now,
                "created_at": now,
                "updated_at": now,
            }
            await connection.execute(insert(deliveries).values(**values))
    await database.close()


async def checks(settings: Settings) -> list[tuple[str, str]]:
    """Return the states and details of the check."""
    found = await asyncio.to_thread(lambda: list(check_deliveries(settings)))
    return [(one.state, one.detail) for one in found]


async def test_what_waits_and_what_was_given_up_is_reported_with_the_reason(tmp_path: Path) -> None:
    """One line for each reason, the most frequent first; an installation that was not started has none."""
    settings = Settings(data_dir=tmp_path / "data")
    assert await checks(settings) == []
    await migrated_data_directory(tmp_path / "data")
    assert await checks(settings) == [(CheckState.OK, "none waits after a failure")]
    await add_deliveries(settings.database)
    assert await checks(settings) == [
        (CheckState.WARNING, f"2 wait: {LACKS}"),
        (CheckState.WARNING, "1 dead: too long"),
    ]
    await add_accounts(settings.database)
    assert await checks(settings) == [
        (CheckState.WARNING, f"2 wait in the account team-a: {LACKS}"),
        (CheckState.WARNING, "1 dead in the account team-a: too long"),
    ]


async def add_accounts(url: str) -> None:
    """Add the account of the deliveries, and another one."""
    database = Database(url)
    async with database.begin() as connection:
        for number, name in ((1, "team-a"), (2, "team-b")):
            values = {"id": f"acc_{number}", "name": name, "created_at": utc_now()}
            await connection.execute(insert(accounts).values(**values))
    await database.close()
