"""Conversations over HTTP: list, show, update, delete and snapshot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictStr, field_validator, model_validator

from channels.message import Address
from delivery.database.engine import Connection
from gateway.accounts.author_names import name_rooms, read_named_previews
from gateway.conversations import titles
from gateway.conversations.titles import LONGEST_TITLE, derive_title
from gateway.store.conversations import conversations as store
from gateway.store.conversations import listing
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.listing import ConversationState, ConversationView
from gateway.store.conversations.messages import MessageRole
from gateway.store.conversations.previews import Preview
from gateway.store.turn_state import QueueMode
from gateway.store.turns import branches as branch_store
from gateway.store.turns.branches import Branch
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions, has_conditions
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AddressResponse(ResponseModel):
    """The chat thread of a conversation; `channel_name` is null if the channel was deleted.

    `room_name` is the name of the person in a direct chat whose room has the id of the person.
    """

    channel: str
    channel_name: str | None
    room: str
    room_name: str | None
    thread: str | None


class QueueResponse(ResponseModel):
    """The conversation's handling of input that arrives while a turn runs; null uses the agent's."""

    mode: QueueMode | None
    limit: int | None


class QueueUpdate(RequestModel):
    """How input that arrives while a turn runs is handled, and how much can wait."""

    mode: QueueMode | None = None
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None


class ConversationUpdate(RequestModel):
    """The fields of a conversation to change.

    `queue: null` uses the agent's again, `title: null` the start of the first message.
    """

    queue: QueueUpdate | None = None
    title: Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_TITLE)] | None = None

    @field_validator("queue", mode="before")
    @classmethod
    def _accept_mode_name(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given

    @field_validator("title")
    @classmethod
    def _refuse_invisible(cls, given: str | None) -> str | None:
        if given is not None and derive_title(given) is None:
            raise ValueError("has no visible characters: give some text, or null for the first message's")
        return given

    @model_validator(mode="after")
    def _refuse_empty(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("changes nothing: give `title` or `queue`")
        return self


class HandoverView(ResponseModel):
    """The key of the person who handles a conversation, and since when."""

    by: str
    since: datetime | None


class LastMessageResponse(ResponseModel):
    """The start of a conversation's last message."""

    role: MessageRole
    author: str
    author_name: str | None
    text: str
    created_at: datetime


class PreviewResponse(ResponseModel):
    """What a list shows of a conversation; `people` are the authors of its recent messages.

    `people_names` are their names in the same order; a person without a known name has the id there.
    """

    last: LastMessageResponse | None
    people: list[str]
    people_names: list[str]
    states: list[ConversationState]


class BranchResponse(ResponseModel):
    """Turns that were taken back, oldest first; `rerun` is the turn that runs in their place, if one does."""

    id: str
    turn: str
    turns: list[str]
    rerun: str | None
    by: str
    created_at: datetime


class ConversationResponse(ResponseModel):
    """A conversation. `name` is the caller's own and identifies it; `title` is what people see.

    `kind` is the platform of its channel. `preview` is there with `preview=true`. `branches`
    are those that were left, and are shown of a single conversation.
    """

    unversioned = frozenset({"active_at", "preview", "branches"})

    id: str
    name: str | None
    title: str | None
    agent: str
    address: AddressResponse | None
    queue: QueueResponse
    kind: str | None
    handover: HandoverView | None
    preview: PreviewResponse | None = None
    branches: list[BranchResponse] | None = None
    created_at: datetime
    active_at: datetime


class ConversationQuery(PageQuery):
    """The filter of conversations, and their order; `q` is part of a title, name, room or channel."""

    channel: Annotated[StrictStr, Field(max_length=200)] | None = None
    room: Annotated[StrictStr, Field(max_length=200)] | None = None
    kind: Annotated[StrictStr, Field(max_length=60)] | None = None
    agent: Annotated[StrictStr, Field(max_length=200)] | None = None
    state: ConversationState | None = None
    q: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    preview: bool = False
    sort: Literal["activity", "created"] = "activity"
    cursor: Annotated[str, Field(pattern=r"^([0-9]{1,16}-)?cnv_[0-9a-z]{1,40}$")] | None = None

    @model_validator(mode="after")
    def _refuse_cursor_of_other_order(self) -> Self:
        if self.cursor is not None and ("-" in self.cursor) != (self.sort == "activity"):
            raise ValueError("the cursor belongs to a list in another order: keep `sort` on all pages")
        return self

    @property
    def last_active(self) -> tuple[datetime, str] | None:
        """The activity time and id after which a page by activity begins."""
        if self.cursor is None:
            return None
        microseconds, _, conversation = self.cursor.partition("-")
        return _EPOCH + timedelta(microseconds=int(microseconds)), conversation


def _to_preview(preview: Preview) -> PreviewResponse:
    last, names = preview.last, preview.names
    return PreviewResponse(
        last=LastMessageResponse(
            role=last.role,
            author=last.author,
            author_name=names.get(last.author),
            text=last.text,
            created_at=last.created_at,
        )
        if last is not None
        else None,
        people=preview.people,
        people_names=[names.get(one, one) for one in preview.people],
        states=preview.states,
    )


def to_response(view: ConversationView, preview: Preview | None = None) -> ConversationResponse:
    """Return a conversation as a response."""
    conversation, address = view.conversation, None
    if conversation.address is not None:
        there = Address.decode(conversation.address)
        address = AddressResponse(
            channel=there.channel,
            channel_name=view.channel_name,
            room=there.room,
            room_name=view.room_name,
            thread=there.thread,
        )
    return ConversationResponse(
        id=conversation.id,
        name=conversation.name,
        title=conversation.title,
        agent=conversation.agent,
        address=address,
        queue=QueueResponse(
            mode=QueueMode(conversation.queue_mode) if conversation.queue_mode else None,
            limit=conversation.queue_limit,
        ),
        kind=view.channel_kind,
        handover=HandoverView(by=conversation.handover_by, since=conversation.handover_at)
        if conversation.handover_by is not None
        else None,
        preview=_to_preview(preview) if preview is not None else None,
        created_at=conversation.created_at,
        active_at=view.active_at,
    )


async def require_conversation(connection: Connection, account: str, id_or_name: str) -> Conversation:
    """Return an account's conversation; 404 when it has none of this id or name."""
    conversation = await store.get(connection, account, id_or_name)
    if conversation is None:
        raise _unknown()
    return conversation


async def filter_by(connection: Connection, account: str, id_or_name: str | None) -> str | None:
    """Return the id of the conversation that a list is filtered by, None without a filter; 404 if unknown."""
    return None if id_or_name is None else (await require_conversation(connection, account, id_or_name)).id


async def _require_view(connection: Connection, account: str, id_or_name: str) -> ConversationResponse:
    view = await listing.get(connection, account, id_or_name)
    if view is None:
        raise _unknown()
    (named,) = await name_rooms(connection, account, [view])
    return to_response(named)


async def list_conversations(call: ApiCall[NoContent, ConversationQuery]) -> ListPage[ConversationResponse]:
    """List the account's conversations, last active first or newest first."""
    query, account = call.query, call.account
    async with call.context.database.read() as connection:
        channel = None
        if query.channel is not None:
            channel = (await call.context.records.get(connection, account, "channel", query.channel)).id
        agent = None
        if query.agent is not None:
            agent = (await call.context.records.get(connection, account, "agent", query.agent)).id
        wanted = listing.ConversationFilter(
            channel=channel,
            room=query.room,
            kind=query.kind,
            agent=agent,
            state=query.state,
            text=query.q,
        )
        if query.sort == "created":
            found = await listing.list_by_creation(
                connection, account, wanted, after=query.cursor, limit=query.limit + 1
            )
        else:
            found = await listing.list_by_activity(
                connection, account, wanted, after=query.last_active, limit=query.limit + 1
            )
        page, following = paginate(found, query.limit)
        previews = await read_named_previews(connection, account, page) if query.preview else {}
        page = await name_rooms(connection, account, page)
    if following is not None and query.sort == "activity":
        following = f"{(page[-1].active_at - _EPOCH) // timedelta(microseconds=1)}-{following}"
    items = [to_response(one, previews.get(one.id, Preview()) if query.preview else None) for one in page]
    return ListPage[ConversationResponse](items=items, next=following)


async def get_conversation(call: ApiCall[NoContent, NoContent]) -> ConversationResponse:
    """Return one conversation with the branches that it left."""
    async with call.context.database.read() as connection:
        shown = await _require_view(connection, call.account, call.path["id"])
        left = await branch_store.list_for_conversation(connection, shown.id)
    return shown.model_copy(update={"branches": [_to_branch(one) for one in left]})


def _to_branch(branch: Branch) -> BranchResponse:
    return BranchResponse(
        id=branch.id,
        turn=branch.turn,
        turns=list(branch.turns),
        rerun=branch.rerun,
        by=branch.by,
        created_at=branch.created_at,
    )


async def delete_conversation(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a conversation with all its data; its turns and jobs are ended first."""
    async with call.context.database.read() as connection:
        conversation = await require_conversation(connection, call.account, call.path["id"])
        await _ensure_version(call, connection, conversation)
    await call.services.conversation_deletion.delete(call.account, conversation.id)


async def update_conversation(call: ApiCall[ConversationUpdate, NoContent]) -> ConversationResponse:
    """Change the title, or how input that arrives while a turn runs is handled."""
    changed = call.body.model_fields_set
    async with call.context.database.begin() as connection:
        conversation = await store.get(connection, call.account, call.path["id"], locked=True)
        if conversation is None:
            raise _unknown()
        await _ensure_version(call, connection, conversation)
        if "queue" in changed:
            wanted = call.body.queue or QueueUpdate()
            await store.set_queue(connection, conversation.id, mode=wanted.mode, limit=wanted.limit)
        if "title" in changed:
            await titles.rename(connection, conversation.id, call.body.title)
        return await _require_view(connection, call.account, conversation.id)


async def _ensure_version(call: ApiCall[Any, Any], connection: Connection, present: Conversation) -> None:
    """Raise the 412 for a request that names another version of a conversation."""
    if has_conditions(call.request):
        ensure_preconditions(call.request, await _require_view(connection, call.account, present.id))


def _unknown() -> HttpProblem:
    return not_found("there is no such conversation in this account")
