"""Sign-ins at MCP servers: who gets a link, and how tokens are renewed, refused and kept from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from gateway.conversations.questions import SIGN_IN
from gateway.records.declared import DeclaredRecords, apply_declared
from gateway.store.accounts import mcp_sign_ins, records
from gateway.store.conversations import conversations
from gateway.store.key_tables import mcp_sign_ins as sign_ins_table
from gateway.store.tables import conversations as table
from gateway.store.turns import approvals as approval_store
from gateway.tools.mcp.chat_command import execute_sign_in_command
from gateway.tools.mcp.sign_ins.links import SignInNotPossible
from mcp_oauth import ProtectedMcpService, protected_mcp_service
from mcp_services import mcp_service
from mcp_sign_in_replica import ASKER, SignInReplica, signed_in
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, open_turn_worker


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


async def test_the_answer_of_a_sign_in_lets_the_turn_use_the_tools(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The question is answered by the way back, and its link is used up."""
    replica = SignInReplica(harness)
    await replica.configure(service.url)
    turn = await replica.add_turn()
    question = await replica.ask(turn)
    await replica.sign_in(question)
    async with harness.database.read() as connection:
        (asked,) = await approval_store.list_for_turn(connection, turn.id)
    assert (asked.tool, asked.state, asked.comment) == (SIGN_IN, "answered", "signed in")
    async with harness.open_tools(replica.tools.open, turn) as (tools, external):
        assert external.notes == ()
        assert (await tools.call("notes_sign_in", {}, call="c1")).ok
        assert (await tools.call("notes_whoami", {}, call="c2")).content == "you are ann"
    with pytest.raises(SignInNotPossible, match="used before"):
        await replica.sign_in(question)


async def test_another_person_has_no_use_of_a_token(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """A turn of another person is offered the sign-in and none of the server's tools."""
    replica = await signed_in(harness, service)
    other = replace(await harness.add_turn(running=True), asker="key_of_bob")
    async with harness.open_tools(replica.tools.open, other) as (tools, external):
        offered = {spec.name for spec in tools.list()}
        assert "notes_sign_in" in offered
        assert "notes_whoami" not in offered
        assert any("notes_sign_in" in note for note in external.notes)


async def test_a_turn_without_a_person_reports_that_sign_in_is_impossible(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """Without an asker no person can be asked."""
    replica = SignInReplica(harness)
    await replica.configure(service.url)
    async with harness.open_tools(replica.tools.open) as (tools, external):
        assert "notes_sign_in" not in {spec.name for spec in tools.list()}
        assert any("no person who can sign in" in note for note in external.notes)


async def test_no_person_is_asked_to_sign_in_to_a_server_that_requires_none(
    harness: TurnWorkerHarness,
) -> None:
    """The call returns at once and says that the tools work; a server that refuses a call asks then."""
    replica = SignInReplica(harness)
    turn = await replica.add_turn()
    async with mcp_service() as public:
        await replica.configure(public.url)
        async with harness.open_tools(replica.tools.open, turn) as (tools, _):
            assert not await tools.needs_approval("notes_sign_in", {}, call="c1")
            refused = await tools.call("notes_sign_in", {}, call="c1")
            assert (refused.ok, "required no sign-in" in refused.content) == (False, True)
            public.requires_sign_in = True
            failed = await tools.call("notes_add", {"a": 1, "b": 2}, call="c2")
            assert (failed.ok, "signs in" in failed.content) == (False, True)
            assert await tools.needs_approval("notes_sign_in", {}, call="c3")


async def test_a_question_in_a_room_has_no_link(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """Others in the room get no link by reading; `/signin` is what the person who asked can write."""
    replica = SignInReplica(harness)
    await replica.configure(service.url)
    async with harness.database.begin() as connection:
        found = await conversations.get_by_id(connection, harness.conversation)
        assert found is not None
        await _make_room(connection, found.id)
    turn = await replica.add_turn()
    question = await replica.ask(turn)
    assert "ticket" not in str(question.args)
    assert "/signin" in question.args["question"]


async def _make_room(connection: Connection, conversation: str) -> None:
    await connection.execute(
        update(table).where(table.c.id == conversation).values(channel="chn_of_a_room", direct=False)
    )


async def test_the_command_gives_the_links_of_the_person_alone(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """Who asked gets the link, which names the waiting turn; another person gets none."""
    replica = SignInReplica(harness)
    await replica.configure(service.url)
    question = await replica.ask(await replica.add_turn())
    async with harness.transactions.begin("command") as tx:
        found = await conversations.get_by_id(tx.connection, harness.conversation)
        assert found is not None
        mine = await execute_sign_in_command(tx, found, replica.links, by=ASKER)
        others = await execute_sign_in_command(tx, found, replica.links, by="key_of_bob")
    assert mine == f"notes: {question.args['url']}"
    assert "Nothing waits" in others


async def test_replicas_renew_an_expired_token_once(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """Two processes that need the token at once get the same new one, by one request."""
    service.authority.lifetime = 1
    first = await signed_in(harness, service)
    service.authority.lifetime = 3600
    second = SignInReplica(harness)
    found = await asyncio.gather(*(one.token() for one in (first, second, first, second)))
    assert len(set(found)) == 1
    assert found[0] in service.authority.access
    assert service.authority.renewals == 1


async def test_a_revoked_token_is_renewed(harness: TurnWorkerHarness, service: ProtectedMcpService) -> None:
    """A token that the server refuses before its time is replaced, and the call is sent again."""
    replica = await signed_in(harness, service)
    service.authority.access.clear()
    turn = await replica.add_turn()
    async with harness.open_tools(replica.tools.open, turn) as (tools, _external):
        assert (await tools.call("notes_whoami", {}, call="c9")).content == "you are ann"
    assert service.authority.renewals == 1


async def test_a_refused_refresh_token_asks_for_another_sign_in(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The tokens are deleted, and the next turn asks again."""
    replica = await signed_in(harness, service)
    service.authority.access.clear()
    service.authority.refresh.clear()
    question = await replica.ask(await replica.add_turn())
    assert "ticket=" in question.args["url"]
    async with harness.database.read() as connection:
        assert await mcp_sign_ins.get(connection, replica.key) is None


async def test_a_token_is_not_sent_to_another_address(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """After the record names another server, the person has to sign in there."""
    replica = await signed_in(harness, service)
    assert await replica.token() is not None
    async with protected_mcp_service() as other:
        await replica.configure(other.url)
        assert await replica.token() is None


@pytest.mark.parametrize("left", [timedelta(seconds=-1), timedelta(days=1)], ids=["ended", "fast clock"])
async def test_a_killed_renewal_is_taken_over(
    harness: TurnWorkerHarness, service: ProtectedMcpService, left: timedelta
) -> None:
    """A claim that was not released ends by itself, so that another process renews the token.

    A clock that was fast when it was made does not keep it longer.
    """
    service.authority.lifetime = 1
    replica = await signed_in(harness, service)
    service.authority.lifetime = 3600
    await claim(replica)
    async with harness.database.begin() as connection:
        await connection.execute(update(sign_ins_table).values(claimed_until=utc_now() + left))
    assert await replica.token() in service.authority.access


async def claim(replica: SignInReplica) -> None:
    """Claim a renewal as a process that dies before its end."""
    async with replica.harness.database.begin() as connection:
        sealed = await mcp_sign_ins.get(connection, replica.key)
        assert sealed is not None
        assert await mcp_sign_ins.claim(connection, replica.key, sealed)
        assert await mcp_sign_ins.claim(connection, replica.key, sealed) is None


async def test_a_sole_process_waits_for_no_claim_of_its_predecessor(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """After a kill and a start the next call renews the token at once."""
    service.authority.lifetime = 1
    await claim(await signed_in(harness, service))
    service.authority.lifetime = 3600
    replica = SignInReplica(harness, alone_since=utc_now())
    assert await replica.token() in service.authority.access


async def test_a_renewal_that_goes_on_keeps_its_claim(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """However long the server takes, no other process uses the refresh token too."""
    service.authority.lifetime = 1
    await signed_in(harness, service)
    service.authority.lifetime = 3600
    replica = SignInReplica(harness, extend_seconds=0.01)
    claims: list[datetime | None] = []

    async def outlast() -> None:
        while len(set(claims)) < 2:
            await asyncio.sleep(0.01)
            async with harness.database.read() as connection:
                column = sign_ins_table.c.claimed_until
                found = await connection.execute(select(column).where(column.is_not(None)))
            claims.append(found.scalar_one())

    service.authority.before_renewal = outlast
    assert await replica.token() in service.authority.access
    assert len(set(claims)) == 2


async def test_the_tokens_of_a_removed_server_are_revoked(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """After a server is removed from the record, the next check deletes the tokens and revokes them."""
    replica = await signed_in(harness, service)
    given = {*service.authority.access, *service.authority.refresh}
    await replica.links.end_unused()
    assert await replica.token() is not None
    async with harness.database.begin() as connection:
        await replica.records.update(connection, harness.agent, patch={"mcp": {"notes": None}})
    stop = asyncio.Event()
    running = asyncio.create_task(replica.links.run(stop))
    async with asyncio.timeout(20):
        assert {await service.authority.revoked.get() for _token in given} == given
    stop.set()
    await running
    async with harness.database.read() as connection:
        assert await mcp_sign_ins.list_used_servers(connection) == []


async def test_the_tokens_of_a_deleted_agent_are_revoked(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """All sign-ins at its servers end with it, and the tokens are revoked after the commit."""
    replica = await signed_in(harness, service)
    given = {*service.authority.access, *service.authority.refresh}
    async with harness.database.begin() as connection:
        revoke = await replica.links.end_sign_ins(connection, harness.agent)
    assert await replica.token() is None
    stop = asyncio.Event()
    running = asyncio.create_task(replica.links.run(stop))
    revoke()
    async with asyncio.timeout(20):
        assert {await service.authority.revoked.get() for _token in given} == given
    stop.set()
    await running


async def test_the_tokens_of_an_agent_that_left_the_file_are_revoked(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """After a file without the agent was applied, a gateway that runs revokes the agent's tokens."""
    replica = SignInReplica(harness)
    account = harness.agent.account
    notes = {"mcp": {"notes": {"url": service.url, "approval": "never"}}}
    async with harness.database.begin() as connection:
        await apply_declared(connection, replica.records, account, DeclaredRecords(agents={"helper": notes}))
        helper = await records.get(connection, account, "agent", "helper")
    assert helper is not None
    harness.agent = helper
    turn = replace(await replica.add_turn(), agent=helper.id)
    await replica.sign_in(await replica.ask(turn))
    given = {*service.authority.access, *service.authority.refresh}
    async with harness.database.begin() as connection:
        await apply_declared(connection, replica.records, account, DeclaredRecords())
    await expect_revoked(SignInReplica(harness), service, given)
    async with harness.database.begin() as connection:
        assert await mcp_sign_ins.take_ended(connection, 10) == []


async def expect_revoked(replica: SignInReplica, service: ProtectedMcpService, tokens: set[str]) -> None:
    """Run a replica until these tokens are revoked, and no others."""
    stop = asyncio.Event()
    running = asyncio.create_task(replica.links.run(stop))
    async with asyncio.timeout(20):
        assert {await service.authority.revoked.get() for _token in tokens} == tokens
    stop.set()
    await running


async def test_a_token_that_was_renewed_while_its_agent_was_deleted_is_revoked(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The renewal finds no agent to keep the new tokens for."""
    service.authority.lifetime = 1
    replica = await signed_in(harness, service)
    service.authority.lifetime = 3600

    async def delete_agent() -> None:
        async with harness.database.begin() as connection:
            await records.delete_record(connection, harness.agent.account, harness.agent.id)

    service.authority.before_renewal = delete_agent
    assert await replica.token() is None
    (access,) = [one for one, token in service.authority.access.items() if token.expires_at is not None][-1:]
    (refresh,) = service.authority.refresh
    await expect_revoked(replica, service, {access, refresh})
