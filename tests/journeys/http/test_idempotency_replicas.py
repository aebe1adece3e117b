"""A POST whose replica died before it answered is executed by the repeat, and only then."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from api_server import open_api_server
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.infra.replica_presence import ReplicaPresence
from gateway.store.tables import replies
from gateway.web.http.context import WebLimits

WAIT = 0.3
"""Seconds a repeat waits for the first answer here."""
LONG = 240.0


def _presence(broker: MemoryLeases, instance: str, *, boot: str = "2") -> ReplicaPresence:
    return ReplicaPresence(broker, instance=instance, boot=boot, ttl=LONG)


async def _insert_running_request(database: Database, holder: ReplicaPresence, *, age: float) -> None:
    """Leave the first request under the only key running, in another process."""
    values = {"status": None, "body": None, "holder": holder.name}
    async with database.begin() as connection:
        created = utc_now() - timedelta(seconds=age)
        await connection.execute(update(replies).values(created_at=created, **values))


@pytest.mark.parametrize(
    ("instance", "boot", "lives", "age", "status"),
    [
        ("here", "1", False, 0.0, 201),
        ("here", "2", True, 11.0, 409),
        ("there", "1", False, 11.0, 201),
        ("there", "1", False, 0.0, 409),
        ("there", "1", True, 11.0, 409),
        ("there", "1", True, 61.0, 201),
    ],
)
async def test_a_repeat_takes_the_place_of_a_request_whose_process_is_gone(
    tmp_path: Path, *, instance: str, boot: str, lives: bool, age: float, status: int
) -> None:
    """Of a dead process of ours at once; of another replica once the broker has recorded its end."""
    broker = MemoryLeases()
    here, first = _presence(broker, "here"), _presence(broker, instance, boot=boot)
    bounds = WebLimits(auth_failures=100_000, idempotency_wait=WAIT)
    async with AsyncExitStack() as stack:
        for one in {one.name: one for one in (here, first) if one is here or lives}.values():
            await stack.enter_async_context(one.maintained(_do_nothing))
        face = await stack.enter_async_context(open_api_server(tmp_path, bounds=bounds, presence=here))
        body = {"url": "https://example.org/"}
        await face.mine.call("POST", "/accounts/me/webhooks", body, Idempotency_Key="k")
        await _insert_running_request(face.context.database, first, age=age)
        again = await face.mine.call("POST", "/accounts/me/webhooks", body, Idempotency_Key="k")
        made = (await face.mine.call("GET", "/accounts/me/webhooks")).body["items"]
    assert (again.status, len(made)) == (status, 2 if status == 201 else 1)
    assert "Idempotency-Replayed" not in again.headers


def _do_nothing() -> None:
    """Do nothing about it."""
