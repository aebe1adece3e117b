"""No statement that runs for each message, or regularly, reads a whole table that grows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import ForeignKeyConstraint, Table

from channels.telegram.simulator import Simulator, simulate
from delivery.database.engine import Database, metadata
from delivery.database.tables import OPEN_DELIVERIES
from delivery.deliveries.attempt import FINAL, DeliveryState
from gateway.app import RunningGateway
from gateway.config.setting_types import RetentionSettings
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.retention import RetentionTask
from gateway.store import tables
from gateway.store.tables import DEAD_TURN
from gateway_process import channel_env
from in_process_gateway import gateway_in_process
from migrated import migrated_sqlite
from query_plans import full_scans
from statement_recorder import Statement, recorded_statements
from webhook_receiver import WebhookReceiver, webhook_receiver

CHAT = 4711
MESSAGES = (
    "hello",
    "!echo pigeon > outbox/note.txt",
    "!&sleep 0.1; echo done",
    "/status",
    "/jobs",
    "/new",
    "again",
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A gateway in this process, a chat, and a webhook receiver."""

    gateway: RunningGateway
    platform: Simulator
    receiver: WebhookReceiver
    key: str


@asynccontextmanager
async def open_scene(data: Path, database_url: str) -> AsyncIterator[Scene]:
    """Run a gateway on a database."""
    async with simulate() as platform, webhook_receiver() as receiver:
        env = {"PATH": os.environ["PATH"], **channel_env("telegram", platform.settings(allow=["*"]))}
        env |= {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8", "DOVECOTE_SANDBOX__REAP_INTERVAL": "0.2"}
        env |= {"DOVECOTE_DATABASE_URL": database_url}
        async with gateway_in_process(data, env) as running:
            key = (data / "key").read_text().strip()
            yield Scene(gateway=running, platform=platform, receiver=receiver, key=key)


async def act(scene: Scene) -> None:
    """Have messages answered, a file and a job delivered, and a webhook called."""
    headers = {"Authorization": f"Bearer {scene.key}"}
    async with aiohttp.ClientSession(scene.gateway.url, headers=headers) as session:
        async with session.get("/accounts/me/agents") as answer:
            agent = (await answer.json())["items"][0]["id"]
        body = {"input": "!echo over http", "webhook": {"url": scene.receiver.url}}
        async with session.post(f"/agents/{agent}/turns", json=body) as answer:
            assert answer.status == 202
    for text in MESSAGES:
        said = len(scene.platform.messages(CHAT))
        await scene.platform.say(CHAT, text)
        await scene.platform.wait_for_messages(said + 1, chat=CHAT)
    async with asyncio.timeout(60):
        await scene.platform.wait_until(
            lambda: any("done" in post.text for post in scene.platform.messages(CHAT))
        )
        while not scene.receiver.requests:
            scene.receiver.request_received.clear()
            await scene.receiver.request_received.wait()


async def run_hourly_work(scene: Scene) -> None:
    """Do what a gateway does once an hour; the other regular work it has done since it started."""
    services = scene.gateway.services
    database = services.transactions.database
    janitor = Janitor(database, services.transactions._relay, services.transactions.wake_soon)
    await janitor.run_once(timedelta(0))
    await janitor.delete_old()
    await janitor.cancel_abandoned()
    await RetentionTask(database, RetentionSettings(), pause=0).run_once(asyncio.Event())


async def test_nothing_that_runs_often_reads_a_whole_table(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Every statement of the scene has a plan that an index bounds; a new statement is checked as well."""
    with recorded_statements() as recorder:
        async with open_scene(tmp_path / "data", database_url) as scene:
            await act(scene)
            await run_hourly_work(scene)
        statements = recorder.distinct()
    assert len(statements) > 80
    assert "\n".join(full_scans(database_url, statements)) == ""


async def test_a_scan_is_found(tmp_path: Path) -> None:
    """A statement without a fitting index is reported, so that the test above can fail."""
    url = await migrated_sqlite(tmp_path / "empty.db")
    asked = Statement(text="SELECT id FROM turns WHERE asker = ?", parameters=("ann",))
    (line,) = full_scans(url, [asked])
    assert line.startswith("SCAN turns")


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_rows_that_go_with_their_owner_are_found_by_an_index(table: Table) -> None:
    """Deleting an account or a conversation reads no whole table to find what belongs to it."""
    led = [[column.name for column in index.columns] for index in table.indexes]
    led += [
        [column.name for column in key.columns]
        for key in table.constraints
        if hasattr(key, "columns") and not isinstance(key, ForeignKeyConstraint)
    ]
    for reference in table.foreign_keys:
        assert any(columns and columns[0] == reference.parent.name for columns in led), reference.parent


def test_conditions_of_indexes_follow_the_states() -> None:
    """The states in the conditions are those of the state machines."""
    assert set(OPEN_DELIVERIES) == {str(state) for state in DeliveryState if state not in FINAL}
    assert "'given up: '" in DEAD_TURN
    assert tables.DEAD_TURN.count("state = 'failed'") == 1
