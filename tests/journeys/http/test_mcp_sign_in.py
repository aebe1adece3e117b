"""People sign in to an MCP server by a link, and the turn that waits for them goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from mcp_oauth import ProtectedMcpService, protected_mcp_service
from mcp_sign_in_steps import LINK, CookieClient, whoami_model
from openai_server import OpenAIServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInGateway:
    """A gateway whose default agent uses a server that people sign in to, and a client of its account."""

    process: GatewayProcess
    service: ProtectedMcpService
    mine: ApiClient

    async def ask(self, client: ApiClient, conversation: str) -> str:
        """Begin a turn and return its id."""
        body = {"input": "who am I", "conversation": conversation}
        begun = await client.call("POST", "/agents/default/turns", body)
        assert begun.status == 202, begun.body
        return str(begun.body["turnId"])

    async def wait(self, client: ApiClient, turn: str, *states: str) -> dict[str, Any]:
        """Return a turn once it is in one of these states."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await client.call("GET", f"/status/{turn}")).body
                if found["state"] in states:
                    return dict(found)
                await asyncio.sleep(0.05)

    async def question(self, client: ApiClient, turn: str) -> dict[str, Any]:
        """Return what a turn asks people once it waits."""
        await self.wait(client, turn, "waiting")
        asked = (await client.call("GET", "/approvals?state=pending")).body["items"]
        (mine,) = [one for one in asked if one["turn"] == turn]
        return dict(mine)

    async def link(self, client: ApiClient, turn: str) -> str:
        """Return the link that a turn shows."""
        return str((await self.question(client, turn))["question"].rpartition(" ")[2])

    async def new_person(self, name: str) -> ApiClient:
        """Return a client with a key of its own, which is another person."""
        body = {"name": name, "scopes": ["read", "chat"]}
        made = await self.mine.call("POST", "/accounts/me/keys", body)
        return ApiClient(session=self.mine.session, url=self.process.url, key=made.body["key"])

    async def wait_revoked(self, tokens: set[str]) -> None:
        """Wait until these tokens, and perhaps others, are revoked."""
        revoked: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            while not tokens <= revoked:
                revoked.add(await self.service.authority.revoked.get())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def signing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SignInGateway]:
    """Run a gateway, a loopback model, and a protected MCP server."""
    async with OpenAIServer(whoami_model) as server, protected_mcp_service() as service:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": server.base_url,
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        }
        data = tmp_path_factory.mktemp("sign-in") / "data"
        async with gateway(data, env=env) as process, process.http() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            config = {"mcp": {"notes": {"url": service.url, "approval": "never"}}}
            changed = await mine.call("PATCH", "/accounts/me/agents/default", {"config": config})
            assert changed.status == 200, changed.body
            yield SignInGateway(process=process, service=service, mine=mine)


async def test_a_turn_waits_for_the_sign_in_over_a_kill_and_goes_on(signing: SignInGateway) -> None:
    """The gateway is killed between the link and the way back; the turn then uses the person's token."""
    authority, earlier = signing.service.authority, len(signing.service.callers)
    asked_before = len(authority.asked)
    turn = await signing.ask(signing.mine, "first")
    link = await signing.link(signing.mine, turn)
    assert LINK in link
    async with CookieClient() as browser:
        status, page, _to = await browser.open(link)
        assert (status, "notes" in page) == (200, True)
        back = await browser.begin(link)
        await signing.process.kill()
        await signing.process.start()
        status, page, _to = await browser.open(URL(back, encoded=True))
        assert status == 200, page
    done = await signing.wait(signing.mine, turn, "completed", "failed")
    assert (done["state"], done["output"]) == ("completed", "the tool said: you are ann")
    assert signing.service.callers[earlier:] == ["ann"]
    (asked,) = authority.asked[asked_before:]
    assert asked.resource == signing.service.url
    assert asked.code_challenge
    again = await signing.ask(signing.mine, "second")
    assert (await signing.wait(signing.mine, again, "completed"))["output"].endswith("you are ann")


async def test_the_tokens_are_encrypted(signing: SignInGateway) -> None:
    """No file of the data directory has a token in clear."""
    erin = await signing.new_person("erin")
    turn = await signing.ask(erin, "of-erin")
    async with CookieClient() as browser:
        back = await browser.begin(await signing.link(erin, turn))
        assert (await browser.open(URL(back, encoded=True)))[0] == 200
    await signing.wait(erin, turn, "completed")
    tokens = [*signing.service.authority.access, *signing.service.authority.refresh]
    files = [path for path in signing.process.data.rglob("*") if path.is_file() and ".db" in path.name]
    found = [path.read_bytes() for path in files]
    assert any(b"mcp_sign_ins" in one for one in found)
    assert tokens
    assert not [token for token in tokens if any(token.encode() in one for one in found)]


async def test_a_browser_that_did_not_begin_cannot_finish(signing: SignInGateway) -> None:
    """Another browser, another state, and a link that was changed are refused; the turn waits on."""
    bob = await signing.new_person("bob")
    turn = await signing.ask(bob, "of-bob")
    link = await signing.link(bob, turn)
    async with CookieClient() as mine, CookieClient() as other:
        back = await mine.begin(link)
        assert (await other.open(URL(back, encoded=True)))[0] == 400
        assert (await mine.open(URL(back).update_query(state="x" * 43)))[0] == 400
        assert (await mine.open(f"{link[:-4]}AAAA"))[0] == 400
    assert (await signing.wait(bob, turn, "waiting", "completed", "failed"))["state"] == "waiting"


async def test_a_person_who_refuses_is_reported_to_the_agent(signing: SignInGateway) -> None:
    """The turn goes on without the sign-in, and the link is used up."""
    carol = await signing.new_person("carol")
    turn = await signing.ask(carol, "of-carol")
    link = await signing.link(carol, turn)
    signing.service.authority.denies = True
    try:
        async with CookieClient() as browser:
            back = await browser.begin(link)
            status, page, _to = await browser.open(URL(back, encoded=True))
            assert (status, "access_denied" in page) == (400, True)
            assert (await browser.open(link))[0] == 400
    finally:
        signing.service.authority.denies = False
    done = await signing.wait(carol, turn, "completed", "failed")
    assert "did not sign in to notes" in done["output"]


async def test_signing_out_ends_the_use_of_the_token(signing: SignInGateway) -> None:
    """After `/signout` the next turn asks again, the tokens are revoked, and both steps are audited."""
    authority = signing.service.authority
    before = {*authority.access, *authority.refresh}
    dora = await signing.new_person("dora")
    turn = await signing.ask(dora, "of-dora")
    async with CookieClient() as browser:
        back = await browser.begin(await signing.link(dora, turn))
        assert (await browser.open(URL(back, encoded=True)))[0] == 200
    await signing.wait(dora, turn, "completed")
    given = {*authority.access, *authority.refresh} - before
    conversation = (await dora.call("GET", f"/status/{turn}")).body["conversationId"]
    said = await dora.call("POST", f"/conversations/{conversation}/messages", {"text": "/signout notes"})
    assert said.status in {200, 202}, said.body
    again = await signing.ask(dora, "of-dora")
    assert LINK in await signing.link(dora, again)
    await signing.wait_revoked(given)
    audited = (await signing.mine.call("GET", "/accounts/me/audit")).body["items"]
    keys = (await signing.mine.call("GET", "/accounts/me/keys")).body["items"]
    (her_key,) = [one["id"] for one in keys if one["name"] == "dora"]
    hers = [(one["action"], one["object"].split()[-1]) for one in audited if one["actor"] == her_key]
    assert hers == [("sign out of MCP server", "notes"), ("sign in to MCP server", "notes")]


async def test_removing_the_server_revokes_the_tokens(signing: SignInGateway) -> None:
    """After a PATCH that removes the server from the agent, everybody's tokens are revoked there."""
    authority = signing.service.authority
    before = {*authority.access, *authority.refresh}
    fern = await signing.new_person("fern")
    turn = await signing.ask(fern, "of-fern")
    async with CookieClient() as browser:
        back = await browser.begin(await signing.link(fern, turn))
        assert (await browser.open(URL(back, encoded=True)))[0] == 200
    await signing.wait(fern, turn, "completed")
    given = {*authority.access, *authority.refresh} - before
    configs = [
        {"mcp": {"notes": None}},
        {"mcp": {"notes": {"url": signing.service.url, "approval": "never"}}},
    ]
    for config in configs:
        changed = await signing.mine.call("PATCH", "/accounts/me/agents/default", {"config": config})
        assert changed.status == 200, changed.body
    await signing.wait_revoked(given)
