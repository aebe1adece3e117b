"""Create the defaults at the first start: an account, its key file, an agent, a workspace, a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from delivery.database import transaction_locks
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.transaction_locks import TransactionLock
from delivery.events.event import new_id
from gateway.accounts import api_keys
from gateway.accounts.api_keys import KEY_PATTERN, key_digest
from gateway.accounts.vault import read_private, write_private
from gateway.config.setting_types import DEFAULT_MODEL, AgentSettings
from gateway.records.declared import DeclaredRecords, apply_declared
from gateway.records.records import Records
from gateway.records.rules.sandbox_ceilings import FIRST_ACCOUNT
from gateway.store.accounts import accounts as account_store
from gateway.store.accounts import records as store
from gateway.store.accounts.accounts import Account
from gateway.store.accounts.records import Record
from sandbox import registry as sandbox_plugins
from sandbox.port import Feature

NAME = FIRST_ACCOUNT
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The default account's id and key file, its default agent, workspace and sandbox."""

    account: str
    key_file: Path
    agent: Record
    workspace: Record
    sandbox: Record


async def ensure_defaults(
    connection: Connection,
    records: Records,
    *,
    data: Path,
    agent: AgentSettings,
    provider: str = "host",
    declared: DeclaredRecords | None = None,
) -> Defaults:
    """Create missing defaults and apply the settings to the records; idempotent.

    A field of the default agent takes the value of the settings when that value has changed since the last
    start: what was changed over HTTP stays until then. Records that the file declares are `managed`: the file
    alone changes them. Replicas that start at once do this one after the other.
    """
    await transaction_locks.acquire(connection, TransactionLock.DECLARED_RECORDS)
    account = await _ensure_account(connection)
    await _ensure_key_file(connection, account.id, data / "key")
    workspace = await _ensure_record(connection, records, account.id, "workspace", {})
    sandbox = await _ensure_record(connection, records, account.id, "sandbox", _sandbox_config(provider))
    start = {
        "sandbox": sandbox.id,
        "workspaces": [{"name": NAME, "workspaceId": workspace.id}],
    }
    default_agent = await _ensure_record(connection, records, account.id, "agent", start)
    default_agent = await _apply_settings(connection, records, default_agent, _agent_patch(agent))
    for one in await apply_declared(connection, records, account.id, declared or DeclaredRecords()):
        log.info(
            "record.changed",
            change=one.change,
            kind=one.kind,
            name=one.name,
            reason=one.reason,
            ended_jobs=one.ended_jobs,
        )
    return Defaults(
        account=account.id,
        key_file=data / "key",
        agent=default_agent,
        workspace=workspace,
        sandbox=sandbox,
    )


async def _ensure_account(connection: Connection) -> Account:
    found = await account_store.get_account(connection, name=NAME)
    if found is None:
        found = Account(id=new_id("acc"), name=NAME, created_at=utc_now())
        await account_store.add_account(connection, found)
    return found


async def _ensure_key_file(connection: Connection, account: str, path: Path) -> None:
    """Store a valid key of the account in the file; a revoked key or one of another account is replaced."""
    text = read_private(path)
    if KEY_PATTERN.match(text):
        known = await account_store.get_key_by_digest(connection, key_digest(text))
        if known is None:
            await api_keys.create_key(connection, account, name=NAME, text=text)
        if known is None or (known.account == account and known.revoked_at is None):
            return
    _key, fresh = await api_keys.create_key(connection, account, name=NAME)
    write_private(path, fresh)


def _sandbox_config(provider: str) -> dict[str, Any]:
    is_persistent = Feature.PERSISTENT in sandbox_plugins.plugin(provider).features
    return {"provider": provider} | ({"persistent": True} if is_persistent else {})


async def _ensure_record(
    connection: Connection, records: Records, account: str, kind: store.RecordKind, config: Mapping[str, Any]
) -> Record:
    found = await store.get(connection, account, kind, NAME)
    if found is not None:
        provider = config.get("provider")
        if kind == "sandbox" and found.config.get("provider") != provider:
            return (await records.update(connection, found, patch=config)).record
        return found
    return (await records.create(connection, account, kind, name=NAME, config=config)).record


def _agent_patch(agent: AgentSettings) -> dict[str, Any]:
    """Return the patch: the model from the settings always, other fields only if the settings name them."""
    configured = agent.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"base_url": None, "fallback": None, "modelChoices": None} | configured | {"model": agent.model}


async def _apply_settings(
    connection: Connection, records: Records, record: Record, settings: Mapping[str, Any]
) -> Record:
    """Write the fields whose settings have changed since they were last applied."""
    applied = await store.get_applied_settings(connection, record.id)
    changed = {
        name: value for name, value in settings.items() if name not in applied or applied[name] != value
    }
    if settings != applied:
        await store.set_applied_settings(connection, record, settings)
    differing = [name for name, value in settings.items() if record.config.get(name) != value]
    kept = [name for name in differing if name not in changed]
    if record.config.get("model") == DEFAULT_MODEL:  # it follows the settings
        kept = [name for name in kept if name != "model"]
    if kept:
        log.info("agent.settings_overridden", account=record.account, agent=record.name, keys=kept)
    if not any(name in changed for name in differing):
        return record
    return (await records.update(connection, record, patch=changed)).record
