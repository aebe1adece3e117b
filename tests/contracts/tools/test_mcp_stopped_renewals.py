"""A process that is stopped while it renews a token at an MCP server, and another that takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from egress.guard import EgressGuard
from gateway.accounts.vault import associated_data
from gateway.store.accounts import mcp_sign_ins as store
from gateway.store.key_tables import mcp_sign_ins as table
from gateway.tools.mcp.sign_ins.grant import SignInGrant, SignInUnavailable
from mcp_oauth import ProtectedMcpService, protected_mcp_service
from mcp_sign_in_replica import POLICY, SignInReplica, signed_in
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, open_turn_worker

NEVER = 10_000.0


@pytest.fixture
async def service() -> AsyncIterator[ProtectedMcpService]:
    """A server that people sign in to."""
    async with protected_mcp_service() as running:
        yield running


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


async def end_claim(harness: TurnWorkerHarness) -> None:
    """Let the claim of a renewal end, as its time does."""
    async with harness.database.begin() as connection:
        ended = utc_now() - timedelta(seconds=1)
        await connection.execute(
            update(table).where(table.c.claimed_until.is_not(None)).values(claimed_until=ended)
        )


async def begin_and_stop(harness: TurnWorkerHarness, service: ProtectedMcpService) -> Stopped:
    """Have a process renew the token, and stop it after the server has taken the old one."""
    replica = await signed_in(harness, service)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    service.authority.before_renewal = wait
    refused = await replica.token()
    assert refused is not None
    stopped = SignInReplica(harness, extend_seconds=NEVER)
    renewing = asyncio.create_task(stopped.token(refused=refused))
    await begun.wait()
    await end_claim(harness)
    return Stopped(refused, renewing, go_on)


class Stopped:
    """The stopped renewal, the token that it replaces, and how it goes on."""

    def __init__(self, refused: str, renewing: asyncio.Task[str | None], go_on: asyncio.Event) -> None:
        self.refused, self.renewing, self.go_on = refused, renewing, go_on


async def test_the_token_that_a_stopped_process_got_is_used(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """Another process is refused in between; it deletes nothing, and both have the new token."""
    stopped = await begin_and_stop(harness, service)
    asking = asyncio.create_task(SignInReplica(harness).token(refused=stopped.refused))
    async with asyncio.timeout(60):
        await service.authority.reused.wait()
        stopped.go_on.set()
        token = await stopped.renewing
        assert token is not None
        assert await asking == token
    assert token in service.authority.access
    assert service.authority.renewals == 1


async def test_a_person_signs_in_again_if_the_other_process_is_gone(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The time of one claim is enough to wait for it."""
    stopped = await begin_and_stop(harness, service)
    asking = asyncio.create_task(SignInReplica(harness).token(refused=stopped.refused))
    async with asyncio.timeout(60):
        await service.authority.reused.wait()
        while not asking.done():
            await end_claim(harness)
            await asyncio.wait({asking}, timeout=0.1)
    assert await asking is None
    stopped.go_on.set()
    assert await stopped.renewing is None


async def test_a_process_that_has_lost_its_claim_sends_nothing(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The token may have been used by then, and a server can end all tokens if it comes twice."""
    replica = await signed_in(harness, service)
    async with harness.database.read() as connection:
        sealed = await store.get(connection, replica.key)
    assert sealed is not None
    context = associated_data("mcp_sign_ins", replica.key.agent, replica.key.field)
    grant = SignInGrant.parse(harness.vault.decrypt(context, sealed))
    config = replica.records.mcp_servers(harness.agent)["notes"]
    with pytest.raises(SignInUnavailable, match="another process may have made it"):
        await replica.sign_ins.flow(config, EgressGuard(policy=POLICY)).renew(grant, lambda: False)
    assert service.authority.renewals == 0
