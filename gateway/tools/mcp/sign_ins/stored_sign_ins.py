"""The tokens of people at MCP servers: stored encrypted, renewed by one process at a time, deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from delivery.background import log_errors, run_shielded
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.deliveries.transactions import Transaction
from delivery.events.event import new_id
from egress.guard import TRUSTED, EgressGuard
from egress.policy import EgressPolicy
from gateway.accounts.persons import platform_of, subject_of
from gateway.accounts.vault import AssociatedData, DecryptionFailed, Vault, associated_data
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.sign_in.token_revocation import TokenRevocation, TokenRevocations
from gateway.store.accounts import audit_log, mcp_prompts
from gateway.store.accounts import mcp_sign_ins as store
from gateway.store.accounts.audit_log import AuditRow
from gateway.store.accounts.mcp_sign_ins import NO_PERSON, SignInKey
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.tools.mcp.sign_ins.grant import GrantRefused, SignInGrant, SignInUnavailable

if TYPE_CHECKING:
    from gateway.tools.mcp.sign_ins.oauth_flow import OAuthFlow

log = structlog.get_logger(__name__)

EXTEND_SECONDS = 3.0
"""Seconds after which a process extends its claim of a renewal; one that died is succeeded soon."""

MAX_ENDED = 50
"""Sign-ins of agents that left the settings file which are revoked at a time, below the queue's limit."""

POLL_SECONDS = 0.2
WAIT_SECONDS = 70.0

CALLBACK_PATH = "/sign-in/mcp/callback"

API_KEY = "key:"
"""The beginning of a person's subject outside of chats; the API key's id follows."""

AUDIT_SIGN_IN, AUDIT_SIGN_OUT = "sign in to MCP server", "sign out of MCP server"
"""The actions in the audit log."""


async def person_in(connection: Connection, conversation: Conversation | None, asker: str) -> str:
    """Return the subject of the person who writes in a conversation; empty if no person does.

    Outside of chats it is the API key.
    """
    if not asker:
        return ""
    platform = await platform_of(connection, conversation)
    if conversation is None or platform is None:
        return f"{API_KEY}{asker}"
    return await subject_of(connection, conversation.account, platform, asker)


async def record_in_audit(connection: Connection, account: str, key: SignInKey, action: str) -> None:
    """Write a person's sign-in or sign-out to the audit log; over the API the actor is the key."""
    entry = AuditRow(
        id=new_id("aud"),
        account=account,
        actor=key.person.removeprefix(API_KEY)[:80],
        action=action,
        object=f"{key.agent} {key.server}"[:300],
        status=200,
        address="",
        created_at=utc_now(),
    )
    await audit_log.record(connection, entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInPlace:
    """Where a turn asks for a sign-in: for whom, and whether others read what is said there."""

    person: str
    is_private: bool


@dataclass(slots=True, kw_only=True)
class _Renewal:
    """A renewal that this process has claimed.

    A process that is stopped (SIGSTOP) loses its claim without notice. So the claim is held for as long as
    was certain when it was last extended, by a clock that goes on.
    """

    key: SignInKey
    account: str
    sealed: str = field(repr=False)
    grant: SignInGrant
    follows_another: bool
    held_until: float

    @property
    def is_held(self) -> bool:
        """Whether no other process can have claimed the renewal since."""
        return time.monotonic() < self.held_until

    def extended(self, since: float) -> None:
        """Record that the claim lasts from a time before it was extended."""
        self.held_until = since + store.CLAIM.total_seconds()


class _RenewedElsewhere(Exception):
    """A server refuses a refresh token that another process may have used, and may still replace."""


class McpSignIns:
    """The sign-ins of all people. `base_url` returns the address at which browsers reach the gateway.

    `alone_since`: since when no other process can hold a claim; None with replicas.
    """

    def __init__(
        self,
        database: Database,
        vault: Vault,
        *,
        policy: EgressPolicy,
        base_url: Callable[[], str],
        clock: Callable[[], float] = time.time,
        alone_since: datetime | None = None,
        extend_seconds: float = EXTEND_SECONDS,
    ) -> None:
        self._database = database
        self._vault = vault
        self._policy = policy
        self.base_url = base_url
        self._clock = clock
        self._alone_since = alone_since
        self._extend_seconds = extend_seconds
        self._refused: dict[SignInKey, str] = {}
        """The last refused envelopes for which another process may still store a new token."""
        self.revocations = TokenRevocations(policy)

    async def place_of(self, conversation_id: str, asker: str) -> SignInPlace:
        """Return for whom a turn of this asker would ask in a conversation."""
        async with self._database.read() as connection:
            conversation = await conversations.get_by_id(connection, conversation_id)
            person = await person_in(connection, conversation, asker)
        in_chat = conversation is not None and conversation.channel is not None
        is_private = not in_chat or bool(conversation is not None and conversation.direct)
        return SignInPlace(person=person, is_private=is_private)

    async def access_token(
        self, key: SignInKey, config: McpServerConfig, guard: EgressGuard, *, refused: str | None = None
    ) -> str | None:
        """Return a person's token, renewed if it is at its end or is the `refused` one.

        None if the person has to sign in. Raises SignInUnavailable if it cannot be renewed now.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    sealed = await self._sealed(key)
                    grant = self._open(key, sealed)
                    if sealed is None or grant is None or grant.address != config.url:
                        return None
                    is_refused = refused is not None and grant.has_token(refused)
                    if not is_refused and not grant.needs_renewal(self._clock()):
                        return grant.access_token
                    if not grant.is_renewable:
                        return None if is_refused else grant.access_token
                    renewal = await self._claim(key, sealed, grant)
                    if renewal is not None:
                        with suppress(_RenewedElsewhere):
                            return await run_shielded(self._renew(renewal, config, guard))
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise SignInUnavailable("another process has not renewed the token yet") from None

    async def _renew(self, claimed: _Renewal, config: McpServerConfig, guard: EgressGuard) -> str | None:
        """Renew a claimed token; one that is refused is deleted, one without a person is revoked.

        The token of a claim that another process left is refused if that one has renewed it. It may be
        stopped with the new token, so it gets the time of a claim to store it: raises _RenewedElsewhere.
        """
        key, sealed = claimed.key, claimed.sealed
        try:
            async with self._keeping_claim(claimed):
                renewed = await self.flow(config, guard).renew(claimed.grant, lambda: claimed.is_held)
        except GrantRefused as error:
            if not claimed.is_held or (claimed.follows_another and self._refused.get(key) != sealed):
                self._refused[key] = sealed
                raise _RenewedElsewhere from error
            log.info("mcp.sign_in_ended", agent=key.agent, server=key.server, error=str(error))
            async with self._database.begin() as connection:
                await store.remove(connection, key, sealed=sealed)
            return None
        except BaseException:
            if claimed.is_held:
                async with self._database.begin() as connection:
                    await store.release(connection, key, sealed)
            raise
        async with self._database.begin() as connection:
            fresh = self._vault.encrypt(_context(key), renewed.to_text())
            is_kept = await store.replace(connection, key, sealed, fresh)
        if not is_kept:  # the person has signed out, or the agent is gone
            self._revoke_soon(claimed.account, renewed, guard)
        return renewed.access_token if is_kept else None

    @asynccontextmanager
    async def _keeping_claim(self, claimed: _Renewal) -> AsyncIterator[None]:
        """Extend the claim of a renewal for as long as the block runs."""
        extending = asyncio.create_task(self._extend_claim(claimed))
        try:
            yield
        finally:
            extending.cancel()
            await asyncio.wait({extending})

    async def _extend_claim(self, claimed: _Renewal) -> None:
        while claimed.is_held:
            await asyncio.sleep(self._extend_seconds)
            with log_errors("mcp.claim"):
                now = time.monotonic()
                if claimed.is_held:
                    async with self._database.begin() as connection:
                        await store.extend_claim(connection, claimed.key, claimed.sealed)
                    claimed.extended(now)

    def flow(
        self, config: McpServerConfig, guard: EgressGuard, client: Mapping[str, Any] | None = None
    ) -> OAuthFlow:
        """Return the steps of sign-ins at a server."""
        from gateway.tools.mcp.sign_ins.oauth_flow import OAuthFlow  # loads the SDK

        redirect_uri = f"{self.base_url()}{CALLBACK_PATH}"
        return OAuthFlow(
            config=config, guard=guard, policy=self._policy, redirect_uri=redirect_uri, client=client
        )

    async def save_prompts(self, key: SignInKey, commands: Sequence[str]) -> None:
        """Store the commands of a server's prompts for `/help`, if they have changed."""
        async with self._database.read() as connection:
            if await mcp_prompts.get(connection, key) == list(commands):
                return
        async with self._database.begin() as connection:
            await mcp_prompts.save(connection, key, commands)

    async def save(self, connection: Connection, key: SignInKey, grant: SignInGrant) -> None:
        """Store what a person's sign-in gave."""
        await store.save(connection, key, self._vault.encrypt(_context(key), grant.to_text()))

    async def sign_out(self, tx: Transaction, key: SignInKey, account: str, guard: EgressGuard) -> bool:
        """Delete a person's tokens, and revoke them after the commit; returns whether there were any.

        `guard` checks connections to the server that they were for.
        """
        sealed = await store.take(tx.connection, key)
        if sealed is None:
            return False
        await record_in_audit(tx.connection, account, key, AUDIT_SIGN_OUT)
        grant = self._open(key, sealed)
        if grant is not None:
            tx.after_commit(lambda: self._revoke_soon(account, grant, guard))
        return True

    async def end(
        self, connection: Connection, keys: Sequence[SignInKey], account: str, guard: EgressGuard
    ) -> Callable[[], None]:
        """Delete sign-ins whose server or agent goes; returns the function that revokes them, for after the
        commit."""
        taken = [(key, await store.take(connection, key)) for key in keys]
        grants = [self._open(key, sealed) for key, sealed in taken]

        def revoke() -> None:
            for grant in grants:
                if grant is not None and grant.tokens:
                    self._revoke_soon(account, grant, guard)

        return revoke

    async def revoke_ended(self) -> None:
        """Revoke tokens of agents that left the settings file; their servers were the operator's choice."""
        async with self._database.begin() as connection:
            ended = await store.take_ended(connection, MAX_ENDED)
        for one in ended:
            grant = self._open(one.key, one.sealed)
            if grant is not None and grant.tokens:
                self._revoke_soon(one.account, grant, TRUSTED)

    def _revoke_soon(self, account: str, grant: SignInGrant, guard: EgressGuard) -> None:
        if grant.revocation_endpoint is not None:
            revocation = TokenRevocation(
                endpoint=grant.revocation_endpoint,
                tokens=grant.tokens,
                client=grant.client,
                address=grant.address,
                guard=guard,
            )
            self.revocations.revoke_soon(account, revocation)

    async def registered_client(self, agent: str, server: str) -> Mapping[str, Any] | None:
        """Return the client that was registered for a server and this gateway's address, or None."""
        key = SignInKey(agent=agent, server=server, person=NO_PERSON)
        found = self._open(key, await self._sealed(key))
        if found is None or f"{self.base_url()}{CALLBACK_PATH}" not in found.client.get("redirect_uris", ()):
            return None
        return found.client

    async def granted_scope(self, key: SignInKey) -> str:
        """Return the scope of a person's token; empty without a token, or if the server named none."""
        found = self._open(key, await self._sealed(key))
        return str(found.tokens.get("scope") or "") if found is not None else ""

    async def save_client(self, agent: str, server: str, address: str, client: Mapping[str, Any]) -> None:
        """Store the client that was registered for a server."""
        key = SignInKey(agent=agent, server=server, person=NO_PERSON)
        grant = SignInGrant(
            address=address, tokens={}, expires_at=None, client=client, metadata={}, resource={}
        )
        async with self._database.begin() as connection:
            await self.save(connection, key, grant)

    async def delete_client(self, agent: str, server: str) -> None:
        """Delete the client of a server, so that the next sign-in registers another."""
        async with self._database.begin() as connection:
            await store.remove(connection, SignInKey(agent=agent, server=server, person=NO_PERSON))

    async def _sealed(self, key: SignInKey) -> str | None:
        async with self._database.read() as connection:
            return await store.get(connection, key)

    async def _claim(self, key: SignInKey, sealed: str, grant: SignInGrant) -> _Renewal | None:
        now = time.monotonic()
        async with self._database.begin() as connection:
            claim = await store.claim(connection, key, sealed, alone_since=self._alone_since)
        if claim is None:
            return None
        return _Renewal(
            key=key,
            account=claim.account,
            sealed=sealed,
            grant=grant,
            follows_another=claim.follows_another,
            held_until=now + store.CLAIM.total_seconds(),
        )

    def _open(self, key: SignInKey, sealed: str | None) -> SignInGrant | None:
        try:
            return SignInGrant.parse(self._vault.decrypt(_context(key), sealed)) if sealed else None
        except DecryptionFailed as error:
            log.error("secret.decryption_failed", table="mcp_sign_ins", row=key.agent, error=str(error))  # noqa: TRY400
            return None


def _context(key: SignInKey) -> AssociatedData:
    return associated_data("mcp_sign_ins", key.agent, key.field)
