"""The way of a person's browser: from the link in the chat to the authorization server, and back.

A link names a question of a waiting turn, and works until the question is answered. The state and the PKCE
verifier are derived from the link and from a cookie, so that any replica can finish what another one began,
and so that a browser which did not begin cannot finish.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from delivery.background import log_errors
from delivery.database.engine import Connection, Database
from delivery.deliveries.transactions import Transaction, Transactions
from gateway.accounts.signed_tokens import SignedTokens
from gateway.conversations.approvals import AlreadyDecided, answer_in, decide_in
from gateway.conversations.questions import SIGN_IN
from gateway.records.records import Records
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.sign_in import attempt
from gateway.store.accounts import mcp_sign_ins
from gateway.store.accounts import records as record_store
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.store.accounts.records import Record
from gateway.store.turns import approvals
from gateway.store.turns.approvals import Approval
from gateway.tools.mcp.server import load_client
from gateway.tools.mcp.sign_ins.grant import GrantRefused, SignInUnavailable
from gateway.tools.mcp.sign_ins.stored_sign_ins import AUDIT_SIGN_IN, McpSignIns, record_in_audit

log = structlog.get_logger(__name__)

PURPOSE = "sign-ins at MCP servers"
PAGE_PATH = "/sign-in/mcp"
SIGNED_IN = "signed in"
"""The answer to a question that asked for a sign-in."""

SCOPE = "scope"
"""The argument of the question that names the scope which a server requires beyond those of the token."""

UNUSED_SECONDS = 60.0
"""Seconds between two searches for sign-ins at servers that were removed."""

_SEPARATOR = "~"
_VALUES = 3


class SignInNotPossible(Exception):
    """The link or what the browser brings back cannot be used; the message is for the person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSignIn:
    """A sign-in that a turn waits for."""

    approval: Approval
    agent: Record
    config: McpServerConfig

    @property
    def server(self) -> str:
        """The server's name in the agent record."""
        return str(self.approval.args["server"])

    @property
    def key(self) -> SignInKey:
        """Where the tokens are stored."""
        return SignInKey(agent=self.agent.id, server=self.server, person=str(self.approval.args["person"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInLinks:
    """Makes links, and serves browsers that follow them."""

    database: Database
    transactions: Transactions
    records: Records
    sign_ins: McpSignIns
    keys: Sequence[bytes] = field(repr=False)
    clock: Callable[[], float] = time.time

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the gateway over TLS."""
        return self.sign_ins.base_url().startswith("https://")

    def link(self, account: str, turn: str, call: str) -> str:
        """Return the link for the sign-in that a call asks for."""
        ticket = SignedTokens(keys=self.keys).sign([account, turn, call])
        return f"{self.sign_ins.base_url()}{PAGE_PATH}?ticket={ticket}"

    async def find(self, ticket: str) -> OpenSignIn:
        """Return the sign-in of a link; raises SignInNotPossible."""
        values = SignedTokens(keys=self.keys).verify(ticket, count=_VALUES)
        if values is None:
            raise SignInNotPossible("This link is not complete: open the complete link from the chat.")
        account, turn, call = (str(one) for one in values)
        async with self.database.read() as connection:
            asked = await approvals.list_for_turn(connection, turn)
            waiting = [one for one in asked if (one.account, one.call, one.tool) == (account, call, SIGN_IN)]
            if not waiting or waiting[-1].state != "pending":
                raise SignInNotPossible("This link was used before, or the request has ended.")
            agent = await record_store.get_by_id(connection, str(waiting[-1].args["agent"]))
        configs = self.records.mcp_servers(agent) if agent is not None else {}
        config = configs.get(str(waiting[-1].args["server"]))
        if agent is None or config is None or not config.lets_people_sign_in:
            raise SignInNotPossible("The agent does not use this server any more.")
        return OpenSignIn(approval=waiting[-1], agent=agent, config=config)

    async def begin(self, ticket: str, earlier: str = "") -> tuple[str, str]:
        """Return the cookie and the authorization server's URL for a browser; raises SignInNotPossible.

        `earlier` is the browser's cookie. If it is of the same link, the browser did not come back from the
        authorization server, which may have forgotten the client: another one is registered.
        """
        found = await self.find(ticket)
        begun = attempt.begin(self._keys_of(ticket), now=self.clock())
        if earlier.partition(_SEPARATOR)[2] == ticket:
            await self.sign_ins.delete_client(found.agent.id, found.server)
        client = await self.sign_ins.registered_client(found.agent.id, found.server)
        await load_client()
        flow = self.sign_ins.flow(found.config, self.records.guard_of(found.agent), client)
        try:
            url, used = await flow.authorize(begun, scope=await self._scope(found))
        except (SignInUnavailable, GrantRefused) as error:
            self._fail(found, error)
        if used != client:
            await self.sign_ins.save_client(found.agent.id, found.server, found.config.url or "", used)
        return f"{begun.cookie}{_SEPARATOR}{ticket}", url

    async def _scope(self, found: OpenSignIn) -> str:
        """Return the scopes to ask for beside the server's usual ones; empty unless it requires more."""
        wanted = str(found.approval.args.get(SCOPE, ""))
        return f"{await self.sign_ins.granted_scope(found.key)} {wanted}" if wanted else ""

    async def finish(self, cookie: str, answer: Mapping[str, str]) -> OpenSignIn:
        """Store the tokens for the code in an answer, and let the turn go on; raises SignInNotPossible."""
        value, _separator, ticket = cookie.partition(_SEPARATOR)
        begun = attempt.resume(self._keys_of(ticket), value, answer.get("state", ""), now=self.clock())
        if begun is None:
            raise SignInNotPossible(
                "This browser did not begin this sign-in, or took too long. Open the link in the chat again."
            )
        found = await self.find(ticket)
        if "error" in answer:
            await self._decline(found, answer["error"])
            raise SignInNotPossible(
                f"You are not signed in: the server answers with {answer['error'][:100]}."
            )
        await self._exchange(found, begun.code_verifier, answer)
        return found

    async def _exchange(self, found: OpenSignIn, verifier: str, answer: Mapping[str, str]) -> None:
        await load_client()
        from gateway.tools.mcp.sign_ins.oauth_flow import AuthorizationCode  # not before: it imports the SDK

        client = await self.sign_ins.registered_client(found.agent.id, found.server)
        flow = self.sign_ins.flow(found.config, self.records.guard_of(found.agent), client)
        code = AuthorizationCode(code=answer.get("code", ""), verifier=verifier, issuer=answer.get("iss"))
        try:
            grant = await flow.exchange(code)
        except SignInUnavailable as error:
            self._fail(found, error)
        except GrantRefused as error:
            await self.sign_ins.delete_client(found.agent.id, found.server)
            self._fail(found, error)
        approval, person = found.approval, found.key.person
        async with self.transactions.begin("mcp.sign_in") as tx:
            await self.sign_ins.save(tx.connection, found.key, grant)
            await record_in_audit(tx.connection, approval.account, found.key, AUDIT_SIGN_IN)
            try:
                await answer_in(tx, approval.account, approval.id, SIGNED_IN, by=person, name=person)
            except AlreadyDecided:  # another answer came since; the person is signed in nevertheless
                log.info("mcp.sign_in_expired", account=approval.account, approval=approval.id)
        log.info("mcp.signed_in", account=found.agent.account, agent=found.agent.id, server=found.server)

    async def sign_out(self, tx: Transaction, agent: Record, server: str, person: str) -> bool:
        """Delete a person's tokens at a server of an agent; returns whether there were any."""
        key = SignInKey(agent=agent.id, server=server, person=person)
        return await self.sign_ins.sign_out(tx, key, agent.account, self.records.guard_of(agent))

    async def end_sign_ins(
        self, connection: Connection, agent: Record, *, kept: Collection[str] = ()
    ) -> Callable[[], None]:
        """Delete the sign-ins at all servers of an agent but the kept ones.

        Returns the function that revokes the tokens; call it after the commit.
        """
        keys = [key for key in await mcp_sign_ins.list_keys(connection, agent.id) if key.server not in kept]
        return await self.sign_ins.end(connection, keys, agent.account, self.records.guard_of(agent))

    async def run(self, stop: asyncio.Event) -> None:
        """Revoke tokens, and end the sign-ins at servers that are in no record any more, until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sign_ins.revocations.run(stop))
            while not stop.is_set():
                with log_errors("mcp_sign_ins"):
                    await self.end_unused()
                with suppress(TimeoutError):
                    async with asyncio.timeout(UNUSED_SECONDS):
                        await stop.wait()

    async def end_unused(self) -> None:
        """End the sign-ins at servers and of agents that were removed, for example from the settings file."""
        await self.sign_ins.revoke_ended()
        async with self.database.read() as connection:
            used = await mcp_sign_ins.list_used_servers(connection)
            agents = {one: await record_store.get_by_id(connection, one) for one in {one for one, _ in used}}
        for agent in filter(None, agents.values()):
            kept = (agent.config.get("mcp") or {}).keys()
            if any(one == agent.id and server not in kept for one, server in used):
                async with self.database.begin() as connection:
                    revoke = await self.end_sign_ins(connection, agent, kept=kept)
                revoke()

    async def _decline(self, found: OpenSignIn, error: str) -> None:
        """Tell the turn that the person did not sign in; another kind of error leaves it waiting."""
        if error != "access_denied":
            await self.sign_ins.delete_client(found.agent.id, found.server)
            return
        approval, person = found.approval, found.key.person
        comment = f"the person did not sign in to {found.server}"
        async with self.transactions.begin("mcp.sign_in") as tx:
            try:
                await decide_in(
                    tx, approval.account, approval.id, approved=False, by=person, name=person, comment=comment
                )
            except AlreadyDecided:
                log.info("mcp.sign_in_expired", account=approval.account, approval=approval.id)

    def _keys_of(self, ticket: str) -> Sequence[bytes]:
        return [hmac.digest(key, ticket.encode("utf-8", "replace"), hashlib.sha256) for key in self.keys]

    @staticmethod
    def _fail(found: OpenSignIn, error: Exception) -> NoReturn:
        log.warning(
            "mcp.sign_in_failed",
            account=found.agent.account,
            agent=found.agent.id,
            server=found.server,
            error=str(error),
        )
        raise SignInNotPossible(
            f"The sign-in at {found.server} failed: {str(error)[:300]}. Open the link in the chat again."
        ) from error
