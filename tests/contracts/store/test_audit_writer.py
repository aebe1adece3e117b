"""Audit entries are written when the database answers again, in their order, or else go to the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.store.accounts import audit_log
from gateway.store.accounts.audit_log import AuditRow
from gateway.web.admin import audit
from gateway.web.admin.audit import AuditWriter
from migrated import migrated_sqlite


def entry(action: str) -> AuditRow:
    """Return an entry about an action."""
    now = datetime.now(UTC)
    return AuditRow(
        id=new_id("aud"),
        account=None,
        actor="operator",
        action=action,
        object="/",
        status=201,
        address="",
        created_at=now,
    )


@pytest.fixture
async def missing(tmp_path: Path) -> Path:
    """The place of a database that is not there."""
    return tmp_path / "away" / "gateway.db"


async def list_actions(database: Database) -> list[str]:
    """Return what was recorded, the oldest first."""
    async with database.read() as connection:
        rows = await audit_log.list_entries(connection, None, before=None, limit=2000)
    return [row.action for row in reversed(rows)]


async def test_entries_wait_for_the_database(missing: Path) -> None:
    """The requests go on; the entries follow in their order, with those of the time in between."""
    database = Database(f"sqlite+aiosqlite:///{missing}")
    writer = AuditWriter(database, retry_seconds=0.01, close_seconds=30.0)
    with capture_logs() as logs:
        await writer.write(entry("first"))
        await writer.write(entry("second"))
    assert [log["event"] for log in logs] == ["audit.write_delayed"]
    made = missing.parent.with_name("made")
    made.mkdir()
    await migrated_sqlite(made / missing.name)
    made.rename(missing.parent)
    while len(await list_actions(database)) < 2:  # noqa: ASYNC110 - the writer has no event for it
        await asyncio.sleep(0.01)
    await writer.write(entry("third"))
    await writer.close()
    assert await list_actions(database) == ["first", "second", "third"]
    await database.close()


async def test_an_entry_that_the_database_refuses_stops_no_other(missing: Path) -> None:
    """It is in the log, and its request fails; the next entry is written."""
    missing.parent.mkdir()
    database = Database(await migrated_sqlite(missing))
    writer = AuditWriter(database)
    with capture_logs() as logs, pytest.raises(IntegrityError):
        await writer.write(replace(entry("refused"), actor=None))  # type: ignore[arg-type]  # on purpose
    assert [log["action"] for log in logs if log["event"] == "audit.write_failed"] == ["refused"]
    await writer.write(entry("next"))
    assert await list_actions(database) == ["next"]
    await database.close()


async def test_an_entry_whose_request_was_cut_off_is_written_once(missing: Path) -> None:
    """It may be written although its writer was cancelled; it is written again with the next one."""
    missing.parent.mkdir()
    database = Database(await migrated_sqlite(missing))
    writer, first = AuditWriter(database), entry("first")
    await writer.write(first)
    await writer.write(first)
    await writer.write(entry("next"))
    assert await list_actions(database) == ["first", "next"]
    await database.close()


async def test_what_is_never_written_is_in_the_log(missing: Path) -> None:
    """With all fields, and the oldest ones first if too many wait."""
    database = Database(f"sqlite+aiosqlite:///{missing}")
    writer = AuditWriter(database, retry_seconds=0.01, close_seconds=0.01)
    with capture_logs() as logs:
        for number in range(audit.MAX_WAITING + 1):
            await writer.write(entry(f"change {number}"))
        dropped = [log for log in logs if log["event"] == "audit.write_failed"]
        await writer.close()
    assert [log["action"] for log in dropped] == ["change 0"]
    assert {"actor", "object", "status", "created_at", "id"} <= set(dropped[0])
    assert sum(log["event"] == "audit.write_failed" for log in logs) == audit.MAX_WAITING + 1
    await database.close()
