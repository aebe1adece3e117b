"""Sign-ins at MCP servers that have to be made once more, and tokens that end while a turn runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from delivery.database.engine import Database
from gateway.agents.port import PendingToolCall
from gateway.tools.mcp.sign_ins.links import SignInNotPossible
from mcp_oauth import ProtectedMcpService, protected_mcp_service
from mcp_sign_in_replica import SignInReplica, signed_in, ticket_of
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


@pytest.mark.parametrize("refusal", [403, 401])
async def test_a_scope_that_a_token_lacks_is_asked_for(
    harness: TurnWorkerHarness, service: ProtectedMcpService, refusal: int
) -> None:
    """The refused call names the scope; after another sign-in, which asks for it too, the call works."""
    replica = await signed_in(harness, service)
    service.authority.call_scope, service.authority.call_refusal = "notes:write", refusal
    turn = await replica.add_turn()
    async with harness.open_tools(replica.tools.open, turn) as (tools, _external):
        refused = await tools.call("notes_whoami", {}, call="c1")
        assert (refused.ok, "'notes:write'" in refused.content) == (False, True)
        assert "notes_sign_in" in refused.content
        assert await tools.needs_approval("notes_sign_in", {}, call="c2")
        asked = PendingToolCall(id="c2", name="notes_sign_in", args={})
        (question,) = tools.changed_calls([asked])
    await replica.pause(turn, question)
    await replica.sign_in(question)
    assert "notes:write" in (service.authority.asked[-1].scopes or ())
    async with harness.open_tools(replica.tools.open, turn) as (tools, _external):
        assert (await tools.call("notes_sign_in", {}, call="c2")).ok
        assert (await tools.call("notes_whoami", {}, call="c3")).content == "you are ann"


async def test_a_scope_that_the_settings_leave_out_is_not_asked_for(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """The person is not asked in vain: the error names the setting."""
    replica = SignInReplica(harness)
    await replica.configure(service.url, oauth={"scope": "notes:read"})
    await replica.sign_in(await replica.ask(await replica.add_turn()))
    assert service.authority.asked[-1].scopes == ["notes:read"]
    service.authority.call_scope = "notes:write"
    async with harness.open_tools(replica.tools.open, await replica.add_turn()) as (tools, _external):
        refused = await tools.call("notes_whoami", {}, call="c1")
        assert "`oauth.scope`" in refused.content
        assert not await tools.needs_approval("notes_sign_in", {}, call="c2")


async def test_a_token_is_not_sent_after_its_person_signed_out(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """A turn that has used the token asks for a sign-in, also if the server would still take the token."""
    replica = await signed_in(harness, service)
    async with harness.open_tools(replica.tools.open, await replica.add_turn()) as (tools, _external):
        assert (await tools.call("notes_whoami", {}, call="c1")).ok
        async with harness.transactions.begin("command") as tx:
            assert await replica.links.sign_out(tx, harness.agent, "notes", replica.key.person)
        sent = len(service.tokens)
        refused = await tools.call("notes_whoami", {}, call="c2")
        assert (refused.ok, "signs in" in refused.content) == (False, True)
        assert await tools.needs_approval("notes_sign_in", {}, call="c3")
    assert set(service.tokens[sent:]) <= {""}
    assert len(service.callers) == 1


async def test_a_slow_refusal_does_not_hide_the_tools_after_a_sign_in(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """A renewal that took long and was refused is no failure of the server, which is asked again at once."""
    replica = await signed_in(harness, service)
    slow = SignInReplica(harness, slow_seconds=0.0)
    service.authority.access.clear()
    service.authority.refresh.clear()
    turn = await slow.add_turn()
    await slow.sign_in(await slow.ask(turn))
    async with harness.open_tools(slow.tools.open, turn) as (tools, external):
        assert external.notes == ()
        assert (await tools.call("notes_whoami", {}, call="c2")).content == "you are ann"
    assert replica.key == slow.key


async def test_a_client_that_the_server_forgot_is_registered_again(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """A browser that did not come back from the server and opens the link again uses another client."""
    replica = await signed_in(harness, service)
    service.authority.clients.clear()
    service.authority.access.clear()
    service.authority.refresh.clear()
    question = await replica.ask(await replica.add_turn())
    cookie, url = await replica.links.begin(ticket_of(question))
    async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as answer:
        assert answer.status == 400
    _cookie, unchanged = await replica.links.begin(ticket_of(question))
    assert _client(unchanged) == _client(url)
    with suppress(SignInNotPossible):
        await replica.sign_in(question, earlier=cookie)
    assert await replica.token() in service.authority.access


def _client(url: str) -> str:
    return url.partition("client_id=")[2].partition("&")[0]


async def test_a_renewal_outlasts_the_turn_that_began_it(
    harness: TurnWorkerHarness, service: ProtectedMcpService
) -> None:
    """A turn is stopped while the server renews the token: the new one, which replaces the old, is kept."""
    replica = await signed_in(harness, service)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    service.authority.before_renewal = wait
    refused = await replica.token()
    renewing = asyncio.create_task(replica.token(refused=refused))
    await begun.wait()
    renewing.cancel()
    await asyncio.wait({renewing})
    go_on.set()
    async with asyncio.timeout(20):
        assert await replica.token(refused=refused) in service.authority.access
    assert service.authority.renewals == 1
