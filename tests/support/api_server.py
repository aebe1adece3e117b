"""The gateway's public face in this process: real SQLite, real sockets on loopback, no broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.api_keys import ApiKeyAuthenticator
from gateway.accounts.vault import Secret, open_vault
from gateway.config.setting_types import AgentSettings
from gateway.environments.workspaces import directory_workspaces
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Records
from gateway.sign_in.oidc_sign_in import OidcSignIn
from gateway.web.http.connection_limit import CONNECTION_LIMITER, ConnectionLimiter, LimitedAppRunner
from gateway.web.http.context import WebContext, WebLimits
from gateway.web.server import build
from migrated import migrated_sqlite

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """What the gateway answered."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    """Asks with one key."""

    session: aiohttp.ClientSession
    url: str
    key: str

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> ApiResponse:
        """Send one request; `body` goes as JSON, header names may use underscores."""
        given = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        json = {} if body is None else {"json": body}
        async with self.session.request(method, self.url + path, headers=given, **json) as answer:
            raw = await answer.read()
            kind = answer.content_type
            reported = await answer.json(content_type=None) if "json" in kind and raw else raw
            return ApiResponse(status=answer.status, headers=answer.headers, body=reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running face with its default account, a second account, and the operator."""

    url: str
    port: int
    context: WebContext
    connections: ConnectionLimiter
    mine: ApiClient
    other: ApiClient
    operator: ApiClient
    anonymous: ApiClient
    changed: list[tuple[str, str]] = field(default_factory=list)


@asynccontextmanager
async def open_api_server(
    data: Path,
    *,
    bounds: WebLimits | None = None,
    sign_in: Callable[[Database], OidcSignIn] | None = None,
    **more: Any,
) -> AsyncIterator[ApiServer]:
    """Serve records from `data` on a free port."""
    database = Database(await migrated_sqlite(data / "gateway.db"))
    changed: list[tuple[str, str]] = []

    async def channels_changed(account: str, record: str) -> None:
        changed.append((account, record))

    surface = WebContext(
        database=database,
        records=Records(open_vault(data)),
        api_key_authenticator=ApiKeyAuthenticator(database),
        admin_key=Secret(ADMIN_KEY),
        limits=bounds or WebLimits(auth_failures=100_000),
        on_channel_changed=channels_changed,
        sign_in=sign_in(database) if sign_in is not None else None,
        workspaces=directory_workspaces(data / "workspaces", baselines=data / "carried", limit=1 << 28),
        **more,
    )
    async with database.begin() as connection:
        await ensure_defaults(connection, surface.records, data=data, agent=AgentSettings())
        _account, other = await api_keys.create_account(connection, "other")
    runner = LimitedAppRunner(
        build(surface), surface.limits, trusted_proxies=surface.trusted_proxies, access_log=None
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    base = f"http://127.0.0.1:{port}"
    key = (data / "key").read_text().strip()
    async with aiohttp.ClientSession() as session:

        def client(text: str) -> ApiClient:
            return ApiClient(session=session, url=base, key=text)

        yield ApiServer(
            url=base,
            port=port,
            context=surface,
            connections=runner.app[CONNECTION_LIMITER],
            mine=client(key),
            other=client(other),
            operator=client(ADMIN_KEY),
            anonymous=client(""),
            changed=changed,
        )
    await runner.cleanup()
    await database.close()
