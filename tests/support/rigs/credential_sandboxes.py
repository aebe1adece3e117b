"""An account with agents and credentials, and sandboxes whose requests are signed with them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from delivery.database.engine import Database
from docker_rig import engine_rig
from gateway.accounts import api_keys
from gateway.environments.credentials import Credentials
from gateway.records.records import Records
from gateway.store.accounts import audit_log
from public_hosts import PublicHosts
from sandbox.model import ExecRequest, ExecResult, Network
from sandbox.port import Provider, Sandbox
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import variants_of

PASSWORD = "-".join(("canary", "password", "of", "the", "account"))  # noqa: FLY002 - in no file of the tests


class CredentialAccount:
    """An account with two agents and its credentials."""

    def __init__(self, database: Database, records: Records) -> None:
        self.database = database
        self.records = records
        self.clock: Callable[[], float] = time.time
        self.id = ""
        self.agents: dict[str, str] = {}

    async def create(self) -> None:
        """Create the account and its agents."""
        async with self.database.begin() as connection:
            account, _key = await api_keys.create_account(connection, "one")
            self.id = account.id
            for name in ("coder", "reader"):
                made = await self.records.create(connection, self.id, "agent", name=name, config={})
                self.agents[name] = made.record.id

    async def add(self, name: str, host: str, kind: str, secret: Any, *agents: str) -> str:
        """Create a credential and return its id."""
        config = {"host": host, "kind": kind, "secret": secret, "agents": list(agents or ("coder",))}
        async with self.database.begin() as connection:
            made = await self.records.create(
                connection, self.id, "credential", name=name, config=config, below=""
            )
        return made.record.id

    async def delete(self, credential: str) -> None:
        """Delete a credential."""
        async with self.database.begin() as connection:
            record = await self.records.get(connection, self.id, "credential", credential)
            await self.records.delete(connection, record)

    async def audit(self) -> list[str]:
        """Return the objects of the audit log, oldest first."""
        async with self.database.read() as connection:
            found = await audit_log.list_entries(connection, self.id, before=None, limit=100)
        return [f"{one.actor} {one.action} {one.object}" for one in reversed(found)]


def rig_of(provider: str, directory: Path) -> ProviderRig:
    """Return a provider whose sandboxes use the proxy."""
    if provider == "docker":
        return engine_rig("engine", directory)
    variants = variants_of(provider)
    return variants.get("control_groups", next(iter(variants.values())))(directory)


@asynccontextmanager
async def sandboxes(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount, provider: str = "host"
) -> AsyncIterator[CredentialSandboxes]:
    """Open a provider with the credential proxy."""
    rig = rig_of(provider, tmp_path)
    credentials = Credentials(account.database, account.records, clock=account.clock)
    async with hosts.sockets(signer=credentials.signer) as rig.egress, rig.open() as opened_provider:
        opened = CredentialSandboxes(rig, opened_provider, account)
        yield opened
        for sandbox in opened.made:
            await opened_provider.destroy(sandbox.id)


class CredentialSandboxes:
    """The sandboxes of a test."""

    def __init__(self, rig: ProviderRig, provider: Provider, account: CredentialAccount) -> None:
        self.made: list[Sandbox] = []
        self.rig = rig
        self._provider = provider
        self._account = account

    async def create(self, agent: str = "coder", *domains: str) -> Sandbox:
        """Create a restricted sandbox of an agent; an empty name means one that agents share."""
        spec = self.rig.spec(
            label=f"{self.rig.label}:{agent}",
            network=Network.RESTRICTED,
            allow_domains=domains,
            account=self._account.id,
            agent=self._account.agents.get(agent, ""),
        )
        self.made.append(await self._provider.create(spec))
        return self.made[-1]


async def run(sandbox: Sandbox, script: str) -> ExecResult:
    """Run a script with a generous time-out."""
    return await sandbox.run(ExecRequest(script=script, timeout=60))


async def echo_headers(request: web.BaseRequest) -> web.Response:
    """Answer whether and how a request was signed, without its secret."""
    kind, _, value = request.headers.get("Authorization", "none").partition(" ")
    body = await request.read()
    return web.json_response(
        {
            "kind": kind,
            "signed": value == PASSWORD,
            "key": request.headers.get("X-Key", ""),
            "path": str(request.rel_url),
            "body": len(body),
            "method": request.method,
        }
    )
