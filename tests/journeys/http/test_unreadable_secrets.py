"""A stored secret that cannot be decrypted is named in the answer to a change, and can be replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from api_server import ApiServer, open_api_server
from delivery.database.tables import endpoints
from delivery.webhooks.signing import new_secret
from gateway.accounts.vault import Vault
from gateway.records import webhooks
from gateway.records.stored_secrets import secret_associated_data
from gateway.store.tables import records

HOOK = {"url": "https://example.org/hook", "secret": new_secret()}
HTTP_TOOL = {"url": "https://example.org/", "description": "Look.", "headers": {"X-Key": "old-secret"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A record with a secret: how it is created, where its secret is, and a patch that replaces it."""

    plural: str
    body: Mapping[str, Any]
    pointer: str
    fresh: Mapping[str, Any]


def agent(pointer: str, config: Mapping[str, Any], fresh: Mapping[str, Any]) -> Case:
    """Return the case of a field of an agent."""
    body = {"name": "mine", "config": {"model": "builtin:shell", **config}}
    return Case(plural="agents", body=body, pointer=f"/config{pointer}", fresh={"config": fresh})


SERVER = {"url": "https://example.org/mcp"}
CLIENT = {"client_id": "me", "client_secret": "old-secret"}
CASES = {
    "sandbox variable": Case(
        plural="sandboxes",
        body={"name": "mine", "config": {"envVars": {"TOKEN": "old-secret", "OTHER": "kept"}}},
        pointer="/config/envVars/TOKEN",
        fresh={"config": {"envVars": {"TOKEN": "fresh"}}},
    ),
    "sandbox variable, removed": Case(
        plural="sandboxes",
        body={"name": "mine", "config": {"envVars": {"TOKEN": "old-secret"}}},
        pointer="/config/envVars/TOKEN",
        fresh={"config": {"envVars": {"TOKEN": None}}},
    ),
    "channel token": Case(
        plural="channels",
        body={"name": "mine", "kind": "telegram", "settings": {"token": "1:old-secret"}},
        pointer="/settings/token",
        fresh={"settings": {"token": "1:fresh"}},
    ),
    "header of an MCP server": agent(
        "/mcp/docs/headers/X-Key",
        {"mcp": {"docs": {**SERVER, "headers": {"X-Key": "old-secret"}}}},
        {"mcp": {"docs": {"headers": {"X-Key": "fresh"}}}},
    ),
    "client of an MCP server": agent(
        "/mcp/docs/oauth/client_secret",
        {"mcp": {"docs": {**SERVER, "oauth": CLIENT}}},
        {"mcp": {"docs": {"oauth": {"client_secret": "fresh"}}}},
    ),
    "variable of an MCP server": agent(
        "/mcp/docs/env/TOKEN",
        {"mcp": {"docs": {"command": "serve", "env": {"TOKEN": "old-secret"}}}},
        {"mcp": {"docs": {"env": {"TOKEN": "fresh"}}}},
    ),
    "HTTP tool": agent(
        "/tools/http/look/headers/X-Key",
        {"tools": {"http": {"look": HTTP_TOOL}}},
        {"tools": {"http": {"look": {"headers": {"X-Key": "fresh"}}}}},
    ),
    "HTTP hook": agent(
        "/hooks/http/look/secret",
        {"hooks": {"http": {"look": HOOK}}},
        {"hooks": {"http": {"look": {"secret": new_secret()}}}},
    ),
}


def elsewhere(record: str, pointer: str) -> str:
    """Return the secret as another master key encrypts it."""
    return Vault(["lost-" + "k" * 40]).encrypt(secret_associated_data(record, pointer), "old-secret")


DAMAGES: dict[str, Callable[[str, str], Any]] = {
    "lost key": elsewhere,
    "damaged": lambda _record, _pointer: "x",
    "no text": lambda _record, _pointer: 7,
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running face."""
    async with open_api_server(tmp_path) as running:
        yield running


async def spoil(api: ApiServer, record: str, pointer: str, damage: Callable[[str, str], Any]) -> None:
    """Replace one stored secret of a record."""
    inner = pointer.removeprefix("/config")
    async with api.context.database.begin() as connection:
        account = (await api.mine.call("GET", "/accounts/me")).body["id"]
        kind = {"sbx": "sandbox", "agt": "agent", "chn": "channel"}[record.partition("_")[0]]
        stored = await api.context.records.get(connection, account, kind, record)  # type: ignore[arg-type]
        assert inner in stored.encrypted_secrets
        spoilt = {**stored.encrypted_secrets, inner: damage(record, inner)}
        await connection.execute(update(records).where(records.c.id == record).values(secrets=spoilt))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CASES)
async def test_an_unreadable_secret_is_named_and_replaced(api: ApiServer, name: str, damage: str) -> None:
    """A change that keeps it is a 409 with the field and the remedy; one that replaces it is made."""
    case = CASES[name]
    created = await api.mine.call("POST", f"/accounts/me/{case.plural}", dict(case.body))
    assert created.status == 201, created.body
    path = f"/accounts/me/{case.plural}/{created.body['id']}"
    await spoil(api, created.body["id"], case.pointer, DAMAGES[damage])
    refused = await api.mine.call("PATCH", path, {"name": "other"})
    assert refused.status == 409, refused.body
    assert [one["pointer"] for one in refused.body["errors"]] == [case.pointer]
    assert "send a new value, or null" in refused.body["errors"][0]["detail"]
    assert ("DOVECOTE_SECRET_KEYS" in refused.body["detail"]) == (damage == "lost key")
    replaced = await api.mine.call("PATCH", path, dict(case.fresh))
    assert replaced.status == 200, replaced.body
    renamed = await api.mine.call("PATCH", path, {"name": "other"})
    assert (renamed.status, renamed.body["name"]) == (200, "other")


async def test_an_unreadable_webhook_secret_is_replaced(api: ApiServer) -> None:
    """A rotation and a new secret of an agent's webhook need no former secret."""
    body = {"name": "mine", "config": {"model": "builtin:shell", "hooks": {"webhook": HOOK}}}
    assert (await api.mine.call("POST", "/accounts/me/agents", body)).status == 201
    hook = {"name": "one", "url": HOOK["url"], "secret": new_secret()}
    assert (await api.mine.call("POST", "/accounts/me/webhooks", hook)).status == 201
    async with api.context.database.begin() as connection:
        await connection.execute(update(endpoints).values(secret=b"\xff\x00damaged"))
    fresh = new_secret()
    change = {"config": {"hooks": {"webhook": {"secret": fresh}}}}
    assert (await api.mine.call("PATCH", "/accounts/me/agents/mine", change)).status == 200
    rotated = await api.mine.call("POST", "/webhooks/one/rotate")
    assert rotated.status == 200, rotated.body
    async with api.context.database.read() as connection:
        found = (await connection.execute(endpoints.select())).all()
    assert {row.previous_secret for row in found} == {None}
    vault = api.context.records.vault
    stored = {vault.decrypt(webhooks.secret_associated_data(row.id), row.secret) for row in found}
    assert stored == {fresh, rotated.body["secret"]}
