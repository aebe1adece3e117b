"""What stands ready at the first start: an account, its key file, an agent, a workspace, a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from gateway.accounts import api_keys
from gateway.accounts.api_keys import KEY_FORM, digest_of
from gateway.accounts.vault import read_private, write_private
from gateway.config.setting_types import AgentSettings
from gateway.records.records import Book
from gateway.store.accounts import accounts as account_store
from gateway.store.accounts import records as store
from gateway.store.accounts.accounts import Account
from gateway.store.accounts.records import Record
from sandbox import registry as sandbox_plugins
from sandbox.port import Feature

NAME = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The default account's id and key file, its default agent, workspace and sandbox."""

    account: str
    key_file: Path
    agent: Record
    workspace: Record
    sandbox: Record
    channels: tuple[Record, ...] = ()


async def ensure_defaults(
    connection: Connection,
    book: Book,
    *,
    data: Path,
    agent: AgentSettings,
    provider: str = "host",
    channels: Mapping[str, Mapping[str, Any]] | None = None,
) -> Defaults:
    """Make what is missing and bring the settings into the records; the same at every start.

    Of an agent, a sandbox or a workspace only what the settings say is written over; what people changed
    over HTTP stays. Channels of the configuration file are `managed`: those no longer in it are removed.
    """
    account = await _account(connection)
    await _key_file(connection, account.id, data / "key")
    workspace = await _record(connection, book, account.id, "workspace", {})
    sandbox = await _record(connection, book, account.id, "sandbox", _sandbox_config(provider))
    start = {
        "sandbox": sandbox.id,
        "workspaces": [{"name": NAME, "workspaceId": workspace.id}],
    }
    ready = await _record(connection, book, account.id, "agent", start)
    ready = await _follow(connection, book, ready, _agent_patch(agent))
    opened = await _channels(connection, book, ready, channels or {})
    return Defaults(
        account=account.id,
        key_file=data / "key",
        agent=ready,
        workspace=workspace,
        sandbox=sandbox,
        channels=opened,
    )


async def _account(connection: Connection) -> Account:
    found = await account_store.find_account(connection, name=NAME)
    if found is None:
        found = Account(id=new_id("acc"), name=NAME, created_at=utc_now())
        await account_store.add_account(connection, found)
    return found


async def _key_file(connection: Connection, account: str, path: Path) -> None:
    """Keep a key in the file that opens the account; a revoked or foreign one is replaced."""
    text = read_private(path)
    if KEY_FORM.match(text):
        known = await account_store.key_by_digest(connection, digest_of(text))
        if known is None:
            await api_keys.create_key(connection, account, name=NAME, text=text)
        if known is None or (known.account == account and known.revoked_at is None):
            return
    _key, fresh = await api_keys.create_key(connection, account, name=NAME)
    write_private(path, fresh)


def _sandbox_config(provider: str) -> dict[str, Any]:
    lasting = Feature.PERSISTENT in sandbox_plugins.plugin(provider).features
    return {"provider": provider} | ({"persistent": True} if lasting else {})


async def _record(
    connection: Connection, book: Book, account: str, kind: store.Kind, config: Mapping[str, Any]
) -> Record:
    found = await store.find(connection, account, kind, NAME)
    if found is not None:
        provider = config.get("provider")
        if kind == "sandbox" and found.config.get("provider") != provider:
            return (await book.change(connection, found, patch=config)).record
        return found
    return (await book.create(connection, account, kind, name=NAME, config=config)).record


def _agent_patch(agent: AgentSettings) -> dict[str, Any]:
    """The model always follows the settings; the rest where the settings say something."""
    said = agent.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"base_url": None, "fallback": None} | said | {"model": agent.model}


async def _follow(connection: Connection, book: Book, record: Record, patch: Mapping[str, Any]) -> Record:
    if all(record.config.get(key) == value for key, value in patch.items()):
        return record
    return (await book.change(connection, record, patch=patch)).record


async def _channels(
    connection: Connection, book: Book, agent: Record, wanted: Mapping[str, Mapping[str, Any]]
) -> tuple[Record, ...]:
    present = {one.name: one for one in await store.list_of(connection, agent.account, "channel")}
    for name, record in present.items():
        if record.managed and name not in wanted:
            await store.remove(connection, agent.account, record.id)
    return tuple(
        [
            await _channel(connection, book, agent, present.get(name), name=name, table=table)
            for name, table in wanted.items()
        ]
    )


async def _channel(
    connection: Connection,
    book: Book,
    agent: Record,
    present: Record | None,
    *,
    name: str,
    table: Mapping[str, Any],
) -> Record:
    settings = {key: value for key, value in table.items() if key not in ("kind", "agent")}
    config = {"kind": table.get("kind", name), "agent": table.get("agent", agent.id), "settings": settings}
    below = f"/channels/{name}"
    if present is None:
        made = await book.create(
            connection, agent.account, "channel", name=name, config=config, below=below, managed=True
        )
        return made.record
    if present.managed and book.opened(present) == config:
        return present
    return (await book.rewrite(connection, present, config=config, below=below, managed=True)).record
