"""Rows of sandboxes on both databases: what the reaper and the snapshots read of many of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.store import sandboxes
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.reservations import Reservation, ReservationStatus
from sandbox.model import SandboxId

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def test_rows_without_an_instance_are_read_in_parts(database: Database) -> None:
    """A pass reads the rows with an instance or in creation, and of the others those with one last letter."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        stopped = Reservation(
            label="dovecote-a",
            owner=Owner(account=account.id, scope=Scope.SESSION, conversation="cnv_1"),
            provider="host",
            persistent=True,
            status=ReservationStatus.READY,
            used_at=NOW,
            changed_at=NOW,
            idle_timeout=60,
            max_lifetime=60,
            snapshot="s",
            snapshot_at=NOW,
        )
        live = replace(stopped, label="dovecote-b", sandbox=SandboxId("box-1"))
        creating = replace(stopped, label="dovecote-c", status=ReservationStatus.CREATING)
        used = replace(
            live, label="dovecote-d", sandbox=SandboxId("box-2"), used_at=NOW + timedelta(seconds=1)
        )
        never_saved = replace(live, label="dovecote-e", sandbox=SandboxId("box-3"), snapshot_at=None)
        for row in (stopped, live, creating, used, never_saved):
            assert await sandboxes.add(connection, row)
        assert {one.label[-1] for one in await sandboxes.list_live(connection, ending="x")} == set("bcde")
        assert {one.label[-1] for one in await sandboxes.list_live(connection, ending="a")} == set("abcde")
        found = await sandboxes.list_unsaved(connection, "host")
        assert {one.label[-1] for one in found} == set("de")
        assert found == [one for one in await sandboxes.list_all(connection) if one.is_unsaved]
        assert await sandboxes.list_unsaved(connection, "docker") == []
