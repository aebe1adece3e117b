"""What one gateway process has for sign-ins at MCP servers, and a person who signs in there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from egress.guard import EgressGuard
from egress.policy import EgressPolicy
from gateway.agents.port import PendingToolCall
from gateway.conversations import approvals
from gateway.records.records import Records
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.store.turns.turns import Turn
from gateway.tools.mcp.mcp_tools import McpTools
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.mcp.sign_ins.stored_sign_ins import EXTEND_SECONDS, McpSignIns
from mcp_oauth import ProtectedMcpService
from turn_worker import TurnWorkerHarness

BASE_URL = "http://127.0.0.1:1"
POLICY = EgressPolicy.parse("127.0.0.0/8")
ASKER = "key_of_ann"


class SignInReplica:
    """What one gateway process has for sign-ins; a test can open several on one database."""

    def __init__(
        self,
        harness: TurnWorkerHarness,
        *,
        alone_since: datetime | None = None,
        extend_seconds: float = EXTEND_SECONDS,
        **options: Any,
    ) -> None:
        """Put the parts together."""
        self.harness = harness
        self.records = Records(harness.vault, POLICY)
        self.sign_ins = McpSignIns(
            harness.database,
            harness.vault,
            policy=POLICY,
            base_url=lambda: BASE_URL,
            alone_since=alone_since,
            extend_seconds=extend_seconds,
        )
        self.links = SignInLinks(
            database=harness.database,
            transactions=harness.transactions,
            records=self.records,
            sign_ins=self.sign_ins,
            keys=harness.vault.keys_for("test"),
        )
        self.tools = McpTools(self.records, self.links, **options)

    @property
    def key(self) -> SignInKey:
        """Where the tokens of the asker are."""
        return SignInKey(agent=self.harness.agent.id, server="notes", person=f"key:{ASKER}")

    async def configure(self, url: str, **server: Any) -> None:
        """Give the agent the server."""
        patch = {"mcp": {"notes": {"url": url, "approval": "never", **server}}}
        async with self.harness.database.begin() as connection:
            saved = await self.records.update(connection, self.harness.agent, patch=patch)
        self.harness.agent = saved.record

    async def add_turn(self) -> Turn:
        """Add a turn of the asker."""
        return replace(await self.harness.add_turn(running=True), asker=ASKER)

    async def ask(self, turn: Turn) -> PendingToolCall:
        """Have a turn ask for the sign-in, and return the question."""
        async with self.harness.open_tools(self.tools.open, turn) as (tools, _external):
            assert await tools.needs_approval("notes_sign_in", {}, call="c1")
            call = PendingToolCall(id="c1", name="notes_sign_in", args={})
            (question,) = tools.changed_calls([call])
        await self.pause(turn, question)
        return question

    async def pause(self, turn: Turn, question: PendingToolCall) -> None:
        """Have a turn wait for the answer to a question."""
        async with self.harness.transactions.begin("turn.pause") as tx:
            await approvals.request(tx, turn, [question], "")

    async def sign_in(self, question: PendingToolCall, *, earlier: str = "") -> None:
        """Follow the link of a question to its end, with the cookie of an earlier begin."""
        cookie, url = await self.links.begin(ticket_of(question), earlier)
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            back = answer.headers["Location"]
        found = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
        await self.links.finish(cookie, found)

    async def token(self, *, refused: str | None = None) -> str | None:
        """Return the asker's token."""
        config = self.records.mcp_servers(self.harness.agent)["notes"]
        return await self.sign_ins.access_token(self.key, config, EgressGuard(policy=POLICY), refused=refused)


async def signed_in(harness: TurnWorkerHarness, service: ProtectedMcpService) -> SignInReplica:
    """Return a replica after the asker has signed in."""
    replica = SignInReplica(harness)
    await replica.configure(service.url)
    await replica.sign_in(await replica.ask(await replica.add_turn()))
    return replica


def ticket_of(question: PendingToolCall) -> str:
    """Return the ticket of the link in a question."""
    return parse_qs(urlsplit(str(question.args["url"])).query)["ticket"][0]
