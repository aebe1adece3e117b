"""The gateway's public face in this process: real SQLite, real sockets on loopback, no broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.api_keys import Gatekeeper
from gateway.accounts.vault import Secret, open_vault
from gateway.config.setting_types import AgentSettings
from gateway.environments.workspaces import on_disk
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Book
from gateway.web.http.connection_limit import Runner
from gateway.web.http.context import Bounds, Surface
from gateway.web.server import build
from migrated import migrated_sqlite

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the gateway answered."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Asks with one key."""

    session: aiohttp.ClientSession
    url: str
    key: str

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request; `body` goes as JSON, header names may use underscores."""
        given = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        json = {} if body is None else {"json": body}
        async with self.session.request(method, self.url + path, headers=given, **json) as answer:
            raw = await answer.read()
            kind = answer.content_type
            told = await answer.json(content_type=None) if "json" in kind and raw else raw
            return Answer(status=answer.status, headers=dict(answer.headers), body=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """A running face with its default account, a second account, and the operator."""

    url: str
    port: int
    surface: Surface
    mine: Client
    other: Client
    operator: Client
    nobody: Client
    changed: list[tuple[str, str]] = field(default_factory=list)


@asynccontextmanager
async def open_face(data: Path, *, bounds: Bounds | None = None, **more: Any) -> AsyncIterator[Face]:
    """Serve records from `data` on a free port."""
    database = Database(await migrated_sqlite(data / "gateway.db"))
    changed: list[tuple[str, str]] = []

    async def channels_changed(account: str, record: str) -> None:
        changed.append((account, record))

    surface = Surface(
        database=database,
        book=Book(open_vault(data)),
        gatekeeper=Gatekeeper(database),
        admin_key=Secret(ADMIN_KEY),
        bounds=bounds or Bounds(auth_failures=100_000),
        channels_changed=channels_changed,
        workspaces=on_disk(data / "workspaces", carried=data / "carried", limit=1 << 28),
        **more,
    )
    async with database.begin() as connection:
        await ensure_defaults(connection, surface.book, data=data, agent=AgentSettings())
        _account, other = await api_keys.create_account(connection, "other")
    runner = Runner(build(surface), surface.bounds, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    base = f"http://127.0.0.1:{port}"
    key = (data / "key").read_text().strip()
    async with aiohttp.ClientSession() as session:

        def client(text: str) -> Client:
            return Client(session=session, url=base, key=text)

        yield Face(
            url=base,
            port=port,
            surface=surface,
            mine=client(key),
            other=client(other),
            operator=client(ADMIN_KEY),
            nobody=client(""),
            changed=changed,
        )
    await runner.cleanup()
    await database.close()
