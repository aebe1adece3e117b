"""The credentials that a sandbox may use, read from the database for every request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from egress.proxy.signing import OutgoingRequest, SignedHeaders, SigningFailed
from gateway.accounts.vault import DecryptionFailed
from gateway.environments.credential_headers import (
    AccessToken,
    AccessTokens,
    TokenClient,
    fetch_token,
    static_headers,
    token_headers,
)
from gateway.records.credentials import (
    EVERY_AGENT,
    SECRETS,
    BasicLogin,
    GitHubAppKey,
    RefreshToken,
    StaticHeader,
)
from gateway.records.records import Records
from gateway.store.accounts import audit_log
from gateway.store.accounts import records as store
from gateway.store.accounts.audit_log import AuditRow
from gateway.store.accounts.records import Record
from sandbox.model import SandboxSpec

log = structlog.get_logger(__name__)

AUDIT_SECONDS = 300.0
"""The uses of a credential by one sandbox within this time are one line of the audit log."""
MAX_AUDITED = 10_000


class CredentialUses:
    """Remembers which uses were written into the audit log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_new(self, sandbox: str, credential: str) -> bool:
        """Return whether a use is to be written now, and remember it."""
        now, key = self._clock(), (sandbox, credential)
        if now - self._written.get(key, -AUDIT_SECONDS) < AUDIT_SECONDS:
            return False
        self._written[key] = now
        self._written.move_to_end(key)
        while len(self._written) > MAX_AUDITED:
            self._written.popitem(last=False)
        return True


class Credentials:
    """The credentials of all accounts, as the proxies of sandboxes use them."""

    def __init__(
        self, database: Database, records: Records, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._records = records
        self._clock = clock
        self._tokens = AccessTokens(clock)
        self._uses = CredentialUses()

    def signer(self, spec: SandboxSpec) -> SandboxSigner:
        """Return the credentials that the sandbox of a spec may use."""
        return SandboxSigner(credentials=self, account=spec.account, agent=spec.agent, sandbox=spec.label)

    async def find(self, signer: SandboxSigner, host: str) -> Record | None:
        """Return the credential for a host: one that names the agent before one for every agent."""
        allowed = {EVERY_AGENT, signer.agent} - {""}
        found = await self.list_for_host(signer.account, host)
        usable = [one for one in found if allowed & set(one.config["agents"])]
        return min(usable, key=lambda one: (signer.agent not in one.config["agents"], one.id), default=None)

    async def list_for_host(self, account: str, host: str) -> list[Record]:
        """Return the credentials of an account for a host, whichever agents may use them."""
        async with self._database.read() as connection:
            found = await store.list_by_kind(connection, account, "credential")
        return [one for one in found if one.config["host"] == host]

    async def headers(self, signer: SandboxSigner, record: Record, request: OutgoingRequest) -> SignedHeaders:
        """Return the headers of a credential and note its use; raises SigningFailed."""
        try:
            fields = self._records.with_secrets(record)["secret"]
        except DecryptionFailed as error:
            log.error("credential.decryption_failed", credential=record.id, error=str(error))  # noqa: TRY400
            raise SigningFailed(f"The credential {record.name!r} cannot be decrypted.") from None
        secret = SECRETS[record.config["kind"]].model_validate(fields)
        try:
            if isinstance(secret, StaticHeader | BasicLogin):
                signed = SignedHeaders(headers=static_headers(secret))
            else:
                assert isinstance(secret, RefreshToken | GitHubAppKey), "there are four kinds"
                key = _token_key(record, secret)
                token = await self._token(key, record, secret)
                signed = SignedHeaders(
                    headers=token_headers(secret, token.text, request),
                    on_refused=partial(self._tokens.discard, key, token),
                )
        except SigningFailed as error:
            raise SigningFailed(f"The credential {record.name!r} for {request.host}: {error}") from None
        await self._note_use(signer, record, request)
        return signed

    async def _token(self, key: str, record: Record, secret: RefreshToken | GitHubAppKey) -> AccessToken:
        client = TokenClient(guard=self._records.guard_of(record))

        async def fetch() -> AccessToken:
            token = await fetch_token(secret, client, self._clock())
            if token.refresh_token is not None:
                await self._keep_refresh_token(record, token.refresh_token)
            return token

        return await self._tokens.get(key, fetch)

    async def _keep_refresh_token(self, record: Record, refresh_token: str) -> None:
        """Store the refresh token that replaces the former one, unless the credential was deleted."""
        async with self._database.begin() as connection:
            present = await store.get_by_id(connection, record.id)
            if present is not None:
                patch = {"secret": {"refresh_token": refresh_token}}
                await self._records.update(connection, present, patch=patch, below="")

    async def _note_use(self, signer: SandboxSigner, record: Record, request: OutgoingRequest) -> None:
        if not self._uses.is_new(signer.sandbox, record.id):
            return
        entry = AuditRow(
            id=new_id("aud"),
            account=record.account,
            actor=signer.agent or "sandbox",
            action=f"use credential {request.method}"[:200],
            object=f"{record.id} {request.host}"[:300],
            status=200,
            address="sandbox",
            created_at=utc_now(),
        )
        async with self._database.begin() as connection:
            await audit_log.record(connection, entry)


def _token_key(record: Record, secret: RefreshToken | GitHubAppKey) -> str:
    """Return the name of a credential's version."""
    known = secret.model_dump_json(exclude={"refresh_token", "client_secret", "private_key"})
    return f"{record.id} {known}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSigner:
    """The credentials of one sandbox: those of its account that name its agent, or every agent.

    A sandbox that agents share (`agent` is empty) uses only credentials for every agent.
    """

    credentials: Credentials
    account: str
    agent: str
    sandbox: str

    async def has_credential(self, host: str) -> bool:
        """Return whether the sandbox may use a credential for this host."""
        return await self.credentials.find(self, host) is not None

    async def explain(self, host: str) -> str:
        """Return why the sandbox may not use the account's credential for a host, with the remedy."""
        found = await self.credentials.list_for_host(self.account, host)
        if not found or await self.has_credential(host):
            return ""
        begin = f"The credential {found[0].name!r} for {host} is not used in this sandbox:"
        if self.agent:
            return f"{begin} it is for other agents. Add this agent to `agents` of the credential."
        return (
            f"{begin} several agents share the sandbox, and the credential is not for all of them. Leave "
            "`isolation` out of the sandbox record or set it to AGENT, or list '*' in `agents` of the "
            "credential."
        )

    async def sign(self, request: OutgoingRequest) -> SignedHeaders | None:
        """Return the headers for a request, or None without a credential; raises SigningFailed."""
        record = await self.credentials.find(self, request.host)
        return None if record is None else await self.credentials.headers(self, record, request)
