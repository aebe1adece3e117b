"""Servers that settings name and that do not answer."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from pydantic import SecretStr

from gateway.infra.preflight import DependencyUnavailable, connect_nats, migrate_database

UNUSED_ADDRESS = "127.0.0.1:1"


async def test_a_broker_that_does_not_answer_is_reported_by_its_setting() -> None:
    """The line names setting, place and remedy, and no password."""
    async with AsyncExitStack() as stack:
        with pytest.raises(
            DependencyUnavailable, match=f"^nats_url = {UNUSED_ADDRESS} .*DOVECOTE_NATS_URL.*correct the URL"
        ) as reported:
            await connect_nats(SecretStr(f"nats://me:hunter2@{UNUSED_ADDRESS}"), stack)
    assert "hunter2" not in str(reported.value)


async def test_a_database_that_does_not_answer_is_reported_by_its_setting() -> None:
    """The line is one line, and names setting, place and remedy, and no password."""
    url = f"postgresql+psycopg://me:hunter2@{UNUSED_ADDRESS}/x"
    with pytest.raises(
        DependencyUnavailable, match=f"^database_url = {UNUSED_ADDRESS} .*DOVECOTE_DATABASE_URL.*correct the"
    ) as reported:
        await migrate_database(url, SecretStr(url))
    assert "hunter2" not in str(reported.value)
    assert "\n" not in str(reported.value)
