"""Agents, workspaces, sandboxes and channels over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.records.agent import AgentConfig
from gateway.records.fields import Name
from gateway.records.kinds import SkillConfig, WorkspaceConfig
from gateway.records.patches import separate
from gateway.records.records import Written
from gateway.store.accounts import records as store
from gateway.store.accounts.records import Kind, Record
from gateway.web.api import workspace_files
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.route import Call, Nothing, Shown, Strict
from sandbox.config import SandboxConfig


class NewRecord(Strict):
    """A record to make; what `config` may hold depends on the kind."""

    name: Name
    config: dict[str, Any] = Field(default_factory=dict)


class RecordChange(Strict):
    """What to change: `config` is a JSON merge patch, where null takes a key away."""

    name: Name | None = None
    config: dict[str, Any] = Field(default_factory=dict)


class RecordShown(Shown):
    """A record with its defaults filled in; every secret is shown as ***."""

    id: str
    name: str
    config: dict[str, Any]
    managed: bool
    created_at: datetime
    updated_at: datetime


class AgentShown(RecordShown):
    """An agent; the secret that was made for its webhook is told once."""

    webhook_secret: str | None = None


class NewChannel(Strict):
    """A channel to open: which adapter, which agent answers, and the adapter's settings."""

    name: Name
    kind: str = Field(min_length=1, max_length=60)
    agent: str = Field(default="default", min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)


class ChannelChange(Strict):
    """What to change of a channel: `settings` is a JSON merge patch."""

    name: Name | None = None
    agent: str | None = Field(default=None, min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)


class ChannelShown(Shown):
    """A channel; every secret is shown as ***."""

    id: str
    name: str
    kind: str
    agent: str
    settings: dict[str, Any]
    managed: bool
    created_at: datetime
    updated_at: datetime


_MODELS: dict[str, type[BaseModel]] = {
    "agent": AgentConfig,
    "workspace": WorkspaceConfig,
    "sandbox": SandboxConfig,
    "skill": SkillConfig,
}
Handler = Callable[[Call[Any, Any]], Awaitable[Any]]


def shown(record: Record) -> RecordShown | ChannelShown:
    """Return a record as its owner sees it."""
    common = {
        "id": record.id,
        "name": record.name,
        "managed": record.managed,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
    if record.kind == "channel":
        return ChannelShown.model_validate(common | dict(record.config))
    model = _MODELS[record.kind].model_validate(record.config)
    config, _secrets = separate(model.model_dump(by_alias=True))
    return RecordShown.model_validate(common | {"config": config})


def _told(written: Written) -> RecordShown | ChannelShown:
    found = shown(written.record)
    if written.record.kind == "agent":
        return AgentShown(**found.model_dump(), webhook_secret=written.hook_secret)
    return found


def create(kind: Kind) -> Handler:
    """Return the handler that makes a record of this kind."""

    async def create_record(call: Call[NewRecord, Nothing]) -> RecordShown | ChannelShown:
        async with call.surface.database.begin() as connection:
            written = await call.surface.book.create(
                connection, call.account, kind, name=call.body.name, config=call.body.config
            )
        return _told(written)

    return create_record


def listing(kind: Kind) -> Handler:
    """Return the handler that lists records of this kind."""

    async def list_records(call: Call[Nothing, Page]) -> Items[Any]:
        async with call.surface.database.read() as connection:
            found = await store.list_of(
                connection, call.account, kind, after=call.query.after, limit=call.query.limit + 1
            )
        page, following = cut(found, call.query.limit)
        return Items[Any](items=[shown(record) for record in page], next=following)

    return list_records


def show(kind: Kind) -> Handler:
    """Return the handler that shows a record of this kind."""

    async def show_record(call: Call[Nothing, Nothing]) -> RecordShown | ChannelShown:
        async with call.surface.database.read() as connection:
            return shown(await call.surface.book.get(connection, call.account, kind, call.path["id"]))

    return show_record


def change(kind: Kind) -> Handler:
    """Return the handler that changes a record of this kind."""

    async def change_record(call: Call[RecordChange, Nothing]) -> RecordShown | ChannelShown:
        book = call.surface.book
        async with call.surface.database.begin() as connection:
            record = await book.get(connection, call.account, kind, call.path["id"])
            written = await book.change(connection, record, name=call.body.name, patch=call.body.config)
        return _told(written)

    return change_record


def remove(kind: Kind) -> Handler:
    """Return the handler that deletes a record of this kind."""

    async def remove_record(call: Call[Nothing, Nothing]) -> None:
        async with call.surface.database.begin() as connection:
            record = await call.surface.book.get(connection, call.account, kind, call.path["id"])
            await call.surface.book.remove(connection, record)
        if kind == "channel":
            await call.surface.channels_changed(call.account, record.id)
        if kind in ("sandbox", "workspace") and call.surface.core is not None:
            await call.surface.core.sandboxes.forget(call.account, record.id)
        if kind == "workspace":
            await workspace_files.forget(call.surface, call.account, record.id)

    return remove_record


async def create_channel(call: Call[NewChannel, Nothing]) -> RecordShown | ChannelShown:
    """Make a channel; it is live at once."""
    body = call.body
    config = {"kind": body.kind, "agent": body.agent, "settings": body.settings}
    async with call.surface.database.begin() as connection:
        written = await call.surface.book.create(
            connection, call.account, "channel", name=body.name, config=config, below=""
        )
    await call.surface.channels_changed(call.account, written.record.id)
    return shown(written.record)


async def change_channel(call: Call[ChannelChange, Nothing]) -> RecordShown | ChannelShown:
    """Change a channel; it goes on with the new settings at once."""
    body, book = call.body, call.surface.book
    patch: dict[str, Any] = {"settings": body.settings} | ({"agent": body.agent} if body.agent else {})
    async with call.surface.database.begin() as connection:
        record = await book.get(connection, call.account, "channel", call.path["id"])
        book.require_own(record)
        written = await book.change(connection, record, name=body.name, patch=patch, below="")
    await call.surface.channels_changed(call.account, record.id)
    return shown(written.record)
