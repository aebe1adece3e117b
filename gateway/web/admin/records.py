"""Agents, workspaces, sandboxes and channels over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, GetJsonSchemaHandler, StrictBool
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from delivery.database.engine import Connection
from gateway.records.agent import AgentConfig
from gateway.records.fields import Name
from gateway.records.kinds import SkillConfig, WorkspaceConfig
from gateway.records.patches import extract_secrets
from gateway.records.records import SavedRecord
from gateway.store import sandboxes
from gateway.store.accounts import records as store
from gateway.store.accounts.records import Record, RecordKind
from gateway.web.api.files import workspace_files
from gateway.web.http.context import WebContext
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import too_many
from gateway.web.http.route import MODEL_KEY, ApiCall, NoContent, RequestModel, ResponseModel
from gateway.web.openapi_configs import PATCH
from sandbox.config import SandboxConfig


class RecordCreate(RequestModel):
    """The body that creates a record; the keys of `config` depend on the kind."""

    name: Name
    config: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class ShapedAs:
    """An annotation of a config: the OpenAPI document refers to the schema of `model`, or its merge patch.

    The fields are not checked here but by `Records`, which names them as the client does.
    """

    model: type[BaseModel]
    suffix: str = ""

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the name of the model's schema, which the document replaces by a reference."""
        return {MODEL_KEY: f"{self.model.__name__}{self.suffix}"}


AgentShape = Annotated[dict[str, Any], ShapedAs(AgentConfig)]
WorkspaceShape = Annotated[dict[str, Any], ShapedAs(WorkspaceConfig)]
SandboxShape = Annotated[dict[str, Any], ShapedAs(SandboxConfig)]
SkillShape = Annotated[dict[str, Any], ShapedAs(SkillConfig)]


class AgentCreate(RecordCreate):
    """The body that creates an agent."""

    config: AgentShape = Field(default_factory=dict)


class WorkspaceCreate(RecordCreate):
    """The body that creates a workspace."""

    config: WorkspaceShape = Field(default_factory=dict)


class SandboxCreate(RecordCreate):
    """The body that creates the record of sandboxes."""

    config: SandboxShape = Field(default_factory=dict)


class SkillCreate(RecordCreate):
    """The body that creates a skill."""

    config: SkillShape = Field(default_factory=dict)


class RecordUpdate(RequestModel):
    """The fields to change; `config` is a JSON merge patch, in which null removes a key."""

    name: Name | None = None
    config: dict[str, Any] = Field(default_factory=dict)


class AgentUpdate(RecordUpdate):
    """The fields of an agent to change."""

    config: Annotated[dict[str, Any], ShapedAs(AgentConfig, PATCH)] = Field(default_factory=dict)


class WorkspaceUpdate(RecordUpdate):
    """The fields of a workspace to change."""

    config: Annotated[dict[str, Any], ShapedAs(WorkspaceConfig, PATCH)] = Field(default_factory=dict)


class SandboxUpdate(RecordUpdate):
    """The fields of a sandbox's record to change."""

    config: Annotated[dict[str, Any], ShapedAs(SandboxConfig, PATCH)] = Field(default_factory=dict)


class SkillUpdate(RecordUpdate):
    """The fields of a skill to change."""

    config: Annotated[dict[str, Any], ShapedAs(SkillConfig, PATCH)] = Field(default_factory=dict)


class RecordResponse(ResponseModel):
    """A record with its defaults filled in; every secret is shown as ***."""

    id: str
    name: str
    config: dict[str, Any]
    managed: bool
    created_at: datetime
    updated_at: datetime


class AgentRecordResponse(RecordResponse):
    """An agent."""

    config: AgentShape


class WorkspaceRecordResponse(RecordResponse):
    """A workspace."""

    config: WorkspaceShape


class SandboxRecordResponse(RecordResponse):
    """The record of sandboxes that are made alike."""

    config: SandboxShape


class SandboxChangedResponse(SandboxRecordResponse):
    """The record of sandboxes as it was saved; `waiting_jobs`: running jobs that go on as they began.

    A sandbox in which they run has the earlier settings until they have ended.
    """

    unversioned = frozenset({"waiting_jobs"})

    waiting_jobs: int


class SkillRecordResponse(RecordResponse):
    """A skill."""

    config: SkillShape


class AgentResponse(AgentRecordResponse):
    """An agent; a secret that was generated for its webhook is returned once."""

    webhook_secret: str | None = None


class ChannelCreate(RequestModel):
    """The body that creates a channel: its adapter, its agent and the adapter's settings."""

    name: Name
    kind: str = Field(min_length=1, max_length=60)
    agent: str = Field(default="default", min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)
    paused: StrictBool = False


class ChannelUpdate(RequestModel):
    """The fields of a channel to change; `settings` is a JSON merge patch. A paused one receives nothing."""

    name: Name | None = None
    agent: str | None = Field(default=None, min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)
    paused: StrictBool | None = None


class ChannelResponse(ResponseModel):
    """A channel; every secret is shown as ***."""

    id: str
    name: str
    kind: str
    agent: str
    settings: dict[str, Any]
    paused: bool = False
    managed: bool
    created_at: datetime
    updated_at: datetime


UPDATES: Mapping[RecordKind, type[RecordUpdate]] = {
    "agent": AgentUpdate,
    "workspace": WorkspaceUpdate,
    "sandbox": SandboxUpdate,
    "skill": SkillUpdate,
}
_RESPONSES: dict[str, type[RecordResponse]] = {
    "agent": AgentRecordResponse,
    "workspace": WorkspaceRecordResponse,
    "sandbox": SandboxRecordResponse,
    "skill": SkillRecordResponse,
}
_MODELS: dict[str, type[BaseModel]] = {
    "agent": AgentConfig,
    "workspace": WorkspaceConfig,
    "sandbox": SandboxConfig,
    "skill": SkillConfig,
}
Handler = Callable[[ApiCall[Any, Any]], Awaitable[Any]]


def to_response(record: Record) -> RecordResponse | ChannelResponse:
    """Return a record as a response, with secrets masked."""
    common = {
        "id": record.id,
        "name": record.name,
        "managed": record.managed,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
    if record.kind == "channel":
        return ChannelResponse.model_validate(common | dict(record.config))
    model = _MODELS[record.kind].model_validate(record.config)
    config, _secrets = extract_secrets(model.model_dump(by_alias=True))
    return _RESPONSES[record.kind].model_validate(common | {"config": config})


async def _saved_to_response(call: ApiCall[Any, Any], saved: SavedRecord) -> RecordResponse | ChannelResponse:
    found = to_response(saved.record)
    if saved.record.kind == "sandbox":
        waiting = await _count_waiting_jobs(call, saved.record)
        return SandboxChangedResponse(**found.model_dump(), waiting_jobs=waiting)
    if saved.record.kind == "agent":
        return AgentResponse(**found.model_dump(), webhook_secret=saved.hook_secret)
    return found


async def _count_waiting_jobs(call: ApiCall[Any, Any], record: Record) -> int:
    """Return how many running jobs a change of a sandbox record waits for; 0 in a process without turns."""
    if call.context.services is None:
        return 0
    async with call.context.database.read() as connection:
        rows = await sandboxes.list_for_record(connection, call.account, record.id)
    waiting = await call.context.services.sandbox_control.count_waiting_jobs(call.account, rows)
    return sum(waiting.values())


def create(kind: RecordKind) -> Handler:
    """Return the handler that creates a record of this kind."""

    async def create_record(call: ApiCall[RecordCreate, NoContent]) -> RecordResponse | ChannelResponse:
        async with call.context.database.begin() as connection:
            await _require_room(call, connection, kind)
            written = await call.context.records.create(
                connection, call.account, kind, name=call.body.name, config=call.body.config
            )
        return await _saved_to_response(call, written)

    return create_record


async def _require_room(call: ApiCall[Any, Any], connection: Connection, kind: RecordKind) -> None:
    """Raise the 429 if the account has as many records of a kind as it may have."""
    limit = call.context.limits.records
    if await store.count(connection, call.account, kind) >= limit:
        raise too_many(f"records of the kind {kind}", limit, "record_limit")


def list_all(kind: RecordKind) -> Handler:
    """Return the handler that lists records of this kind."""

    async def list_records(call: ApiCall[NoContent, PageQuery]) -> ListPage[Any]:
        async with call.context.database.read() as connection:
            found = await store.list_by_kind(
                connection, call.account, kind, after=call.query.after, limit=call.query.limit + 1
            )
        page, following = paginate(found, call.query.limit)
        return ListPage[Any](items=[to_response(record) for record in page], next=following)

    return list_records


def get(kind: RecordKind) -> Handler:
    """Return the handler that shows a record of this kind."""

    async def show_record(call: ApiCall[NoContent, NoContent]) -> RecordResponse | ChannelResponse:
        async with call.context.database.read() as connection:
            return to_response(
                await call.context.records.get(connection, call.account, kind, call.path["id"])
            )

    return show_record


async def _get_to_change(
    call: ApiCall[Any, Any],
    connection: Connection,
    kind: RecordKind,
    represent: Callable[[Record], BaseModel] = to_response,
) -> Record:
    """Return the record of the path, locked; raises for one that this request may not change."""
    all_records = call.context.records
    record = await all_records.get(connection, call.account, kind, call.path["id"], locked=True)
    all_records.ensure_not_managed(record)
    ensure_preconditions(call.request, represent(record))
    return record


def update(kind: RecordKind) -> Handler:
    """Return the handler that updates a record of this kind."""

    async def change_record(call: ApiCall[RecordUpdate, NoContent]) -> RecordResponse | ChannelResponse:
        all_records = call.context.records
        async with call.context.database.begin() as connection:
            record = await _get_to_change(call, connection, kind)
            written = await all_records.update(
                connection, record, name=call.body.name, patch=call.body.config
            )
            revoke = None
            if kind == "agent":
                servers = written.record.config.get("mcp") or {}
                revoke = await end_sign_ins(call.context, connection, written.record, kept=servers.keys())
        if revoke is not None:
            revoke()
        return await _saved_to_response(call, written)

    return change_record


def delete(kind: RecordKind, represent: Callable[[Record], BaseModel] = to_response) -> Handler:
    """Return the handler that deletes a record of this kind, whose version is that of `represent`."""

    async def remove_record(call: ApiCall[NoContent, NoContent]) -> None:
        async with call.context.database.begin() as connection:
            record = await _get_to_change(call, connection, kind, represent)
            reservations = await sandboxes.list_for_record(connection, call.account, record.id)
            revoke = await end_sign_ins(call.context, connection, record) if kind == "agent" else None
            await call.context.records.delete(connection, record)
        if revoke is not None:
            revoke()
        if kind == "channel":
            await call.context.on_channel_changed(call.account, record.id)
        if reservations and call.context.services is not None:
            await call.context.services.sandbox_control.delete_all(reservations)
        if kind == "workspace":
            await workspace_files.delete_workspace(call.context, call.account, record.id)

    return remove_record


async def create_channel(call: ApiCall[ChannelCreate, NoContent]) -> RecordResponse | ChannelResponse:
    """Create a channel; it is live immediately, unless it is paused."""
    body = call.body
    config = body.model_dump(exclude={"name"})
    async with call.context.database.begin() as connection:
        await _require_room(call, connection, "channel")
        written = await call.context.records.create(
            connection, call.account, "channel", name=body.name, config=config, below=""
        )
    await call.context.on_channel_changed(call.account, written.record.id)
    return to_response(written.record)


async def update_channel(call: ApiCall[ChannelUpdate, NoContent]) -> RecordResponse | ChannelResponse:
    """Update a channel; the new settings apply immediately."""
    body, all_records = call.body, call.context.records
    given = {"agent": body.agent, "paused": body.paused}
    changed = {key: value for key, value in given.items() if value is not None}
    patch: dict[str, Any] = {"settings": body.settings, **changed}
    async with call.context.database.begin() as connection:
        record = await _get_to_change(call, connection, "channel")
        written = await all_records.update(connection, record, name=body.name, patch=patch, below="")
    await call.context.on_channel_changed(call.account, record.id)
    return to_response(written.record)


async def end_sign_ins(
    context: WebContext, connection: Connection, agent: Record, *, kept: Collection[str] = ()
) -> Callable[[], None] | None:
    """Delete the tokens of people at the MCP servers of an agent that go; returns what revokes them."""
    if context.services is None:
        return None
    return await context.services.sign_in_links.end_sign_ins(connection, agent, kept=kept)
