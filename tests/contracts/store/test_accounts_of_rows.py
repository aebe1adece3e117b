"""Every row of an account names it: the tables, and what the migration fills in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from alembic import command
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

import gateway.store.tables  # noqa: F401  (registers its tables, and delivery's)
from delivery.database.engine import metadata
from gateway.migrations import configuration, migrate_up

WITHOUT_ACCOUNT: Mapping[str, str] = {
    "accounts": "its id is the account",
    "allowances": "the rates of bots, by a name that ends with them",
    "blobs": "contents that files of several accounts may share",
    "epochs": "the streams of the deployment",
    "installations": "the deployment",
    "marks": "the keys of the deployment",
    "sandbox_leases": "locks that expire in a day",
}
"""Tables whose rows belong to no account, and why."""

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)

ROWS: Mapping[str, list[dict[str, Any]]] = {
    "accounts": [{"id": "acc_1", "name": "one"}, {"id": "acc_2", "name": "two"}],
    "records": [
        {
            "id": f"{prefix}_{n}",
            "account": f"acc_{n}",
            "kind": kind,
            "name": kind,
            "config": {},
            "secrets": {},
        }
        | {"managed": False, "updated_at": NOW}
        for n in (1, 2)
        for prefix, kind in (("agt", "agent"), ("chn", "channel"))
    ],
    "conversations": [
        {"id": f"cnv_{n}", "account": f"acc_{n}", "agent": f"agt_{n}", "fence": 0} for n in (1, 2)
    ],
    "streams": [
        {"conversation": f"cnv_{n}", "account": f"acc_{n}", "agent": f"agt_{n}"}
        | {"last_n": 1, "relayed_n": 0, "last_seq": 0, "active_at": NOW}
        for n in (1, 2)
    ],
    "turns": [
        {"id": f"trn_{n}", "account": f"acc_{n}", "conversation": f"cnv_{n}", "agent": f"agt_{n}"}
        | {"trigger": "message", "asker": "", "input": "hi", "state": "running", "attempt": 1, "crashes": 0}
        | {"cancel": False, "notify": False}
        for n in (1, 2)
    ],
    "jobs": [
        {"id": f"job_{n}", "account": f"acc_{n}", "conversation": f"cnv_{n}", "turn": f"trn_{n}", "asker": ""}
        | {"agent": f"agt_{n}", "command": "ls", "provider": "host", "sandbox": "s", "state": "running"}
        | {"token_digest": b"d", "token_sealed": b"s", "output": "", "truncated": False}
        for n in (1, 2)
    ],
    "deliveries": [
        {"id": f"dlv_{n}", "account": f"acc_{n}", "event_id": f"evt_{n}", "event_type": "turn.started"}
        | {"event_time": NOW, "kind": "chat", "target": f"to_{n}", "destination": "d", "ordering_key": "k"}
        | {"part": 0, "body": b"{}", "state": "sending", "attempts": 1, "armed_at": NOW, "armed_from": 0}
        | {"uncertain": False, "updated_at": NOW}
        for n in (1, 2)
    ],
    "routes": [
        {
            "id": f"rte_{n}",
            "account": f"acc_{n}",
            "conversation": f"cnv_{n}",
            "kind": "chat",
            "target": f"to_{n}",
        }
        for n in (1, 2)
    ],
    "attempts": [{"delivery": f"dlv_{n}", "number": 1, "started_at": NOW} for n in (1, 2)],
    "bundle_files": [
        {"record": f"agt_{n}", "path": "a", "content": b"x", "sha256": "h", "size": 1, "updated_at": NOW}
        for n in (1, 2)
    ],
    "channel_notes": [{"channel": f"chn_{n}", "name": "a", "note": "b", "updated_at": NOW} for n in (1, 2)],
    "channel_secrets": [
        {"channel": f"chn_{n}", "name": "a", "sealed": "b", "updated_at": NOW} for n in (1, 2)
    ],
    "drafts": [
        {"message": message, "target": f"to_{n}", "turn": turn}
        for n in (1, 2)
        for message, turn in ((f"trn_{n}", None), (f"msg_{n}", f"trn_{n}"), (f"steps_{n}", ""))
    ],
    "inputs": [{"turn": f"trn_{n}", "place": 0, "source": f"trn_0{n}", "text": "also"} for n in (1, 2)],
    "job_progress": [{"job": f"job_{n}", "event": f"evt_{n}", "reports": 1} for n in (1, 2)],
    "mcp_prompts": [
        {"agent": f"agt_{n}", "server": "s", "person": "", "commands": [], "updated_at": NOW} for n in (1, 2)
    ],
    "mcp_sign_ins": [
        {"agent": f"agt_{n}", "server": "s", "person": "", "sealed": "x", "updated_at": NOW} for n in (1, 2)
    ],
    "messages": [
        {"id": f"msg_{n}", "conversation": f"cnv_{n}", "role": "user", "author": "", "text": "hi"}
        | {"attachments": []}
        for n in (1, 2)
    ],
    "outbox": [
        {"event_id": f"evt_{n}", "conversation": f"cnv_{n}", "n": 1, "type": "turn.started", "body": b"{}"}
        for n in (1, 2)
    ],
    "pairings": [{"channel": f"chn_{n}", "person": "p", "name": "P"} for n in (1, 2)],
    "steps": [
        {"turn": f"trn_{n}", "step_key": "call", "position": 0, "tool": "bash", "args": {}, "state": "done"}
        | {"started_at": NOW}
        for n in (1, 2)
    ],
}
"""Two rows of each table, those of account 2 with a 2 in their texts."""

FILLED = [table for table in ROWS if table not in {"accounts", "records", "conversations", "streams"}]


def test_every_table_has_the_account() -> None:
    """An account's rows can be found in every table that has some, and are never without it."""
    without = {name for name, table in metadata.tables.items() if "account" not in table.c}
    assert without == WITHOUT_ACCOUNT.keys()
    nullable = {
        name for name, table in metadata.tables.items() if "account" in table.c and table.c.account.nullable
    }
    assert nullable == {"audit"}  # null: an action of the operator


def _insert_before(connection: Connection) -> None:
    command.upgrade(configuration(connection), "0022")
    found = MetaData()
    found.reflect(connection)
    for name, rows in ROWS.items():
        table = found.tables[name]
        created = {"created_at": NOW} if "created_at" in table.c else {}
        for row in rows:
            connection.execute(table.insert().values(row | created))


def _read_after(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    return {
        table: [dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {table}"))]
        for table in FILLED
    }


async def test_rows_of_an_earlier_version_get_their_account(database_url: str) -> None:
    """The migration keeps every row and fills in the account of its owner."""
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        await connection.run_sync(_insert_before)
    await migrate_up(database_url)
    async with engine.begin() as connection:
        found = await connection.run_sync(_read_after)
    await engine.dispose()
    for table, rows in found.items():
        assert len(rows) == len(ROWS[table]), table
        for row in rows:
            own = {str(value) for name, value in row.items() if name not in {"account", "position", "id"}}
            number = "2" if any(value.endswith("_2") or value == "trn_02" for value in own) else "1"
            assert row["account"] == f"acc_{number}", (table, row)
