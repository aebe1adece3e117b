"""`/v1/conversations`: conversations with metadata, and their items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr, field_validator

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id, rfc3339
from gateway.agents.client_history import EarlierMessage, to_history
from gateway.conversations.questions import ANSWERED, CLIENT_TOOL
from gateway.conversations.submissions.conversation_lookup import get_or_create_conversation
from gateway.conversations.submissions.submission import Submission, UnknownAgent
from gateway.conversations.supplied_history import ADDED, replace_history, with_added
from gateway.store.conversations import client_state, histories
from gateway.store.conversations import messages as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.messages import MessageRow
from gateway.store.turns import approvals as approval_store
from gateway.web.api.conversations import delete_conversation, require_conversation
from gateway.web.compat import openai_ids
from gateway.web.compat.openai.items import message_item, output_item, pending_call_item, to_kept_item
from gateway.web.compat.openai.responses import ItemList
from gateway.web.compat.openai_messages import InputMessage, LenientRequest
from gateway.web.compat.openai_requests import Metadata
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel
from gateway.web.stream.turn_events import with_files

MAX_ITEMS = 20
"""Items in one request."""

MAX_STATE = 256 * 1024
"""Characters of the items that a client added to one conversation."""

RECENT = 500
"""Messages, and calls of the client's tools, that lists of items reach back to."""

Items = Annotated[tuple[InputMessage, ...], Field(max_length=MAX_ITEMS)]


class ConversationCreate(LenientRequest):
    """A new conversation; `agent` (an extension) is the one that answers until a response names another."""

    items: Items | None = None
    metadata: Metadata | None = None
    agent: Annotated[StrictStr, Field(max_length=200)] | None = None


class ConversationMetadata(LenientRequest):
    """The metadata that replaces a conversation's."""

    metadata: Metadata | None


class ItemsCreate(LenientRequest):
    """Messages to add to a conversation; the agent gets them with the next turn."""

    items: Annotated[Items, Field(min_length=1)]


class ConversationObject(ResponseModel):
    """A conversation."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = Field(default_factory=dict)


class ConversationDeleted(ResponseModel):
    """A deleted conversation."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationItem(ResponseModel, extra="allow"):
    """An item of a conversation; its other fields depend on the type."""

    id: str
    type: str


class ItemPageQuery(LenientRequest):
    """A page of items; `after` is the last id of the previous page."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: Annotated[StrictStr, Field(max_length=100)] | None = None

    @field_validator("after")
    @classmethod
    def _refuse_blank(cls, given: str | None) -> str | None:
        return given or None


async def create_conversation(call: ApiCall[ConversationCreate, NoContent]) -> ConversationObject:
    """Create a conversation without a name."""
    body = call.body
    submission = Submission(account=call.account, text="", asker=call.principal.key, agent=body.agent)
    state: dict[str, Any] = {"metadata": body.metadata} if body.metadata else {}
    try:
        async with call.services.transactions.begin("conversation.create") as tx:
            made = await get_or_create_conversation(tx, submission)
            await _add_items(tx.connection, made, state, body.items or ())
    except UnknownAgent as error:
        raise HttpProblem(404, str(error), members={"code": "model_not_found"}) from None
    return _to_object(made, state)


async def get_conversation(call: ApiCall[NoContent, NoContent]) -> ConversationObject:
    """Show a conversation."""
    async with call.context.database.read() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        return _to_object(found, await client_state.get_state(connection, found.id))


async def update_conversation(call: ApiCall[ConversationMetadata, NoContent]) -> ConversationObject:
    """Replace a conversation's metadata."""
    async with call.context.database.begin() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        state = {**await client_state.get_state(connection, found.id), "metadata": call.body.metadata or {}}
        await client_state.set_state(connection, found.id, state)
    return _to_object(found, state)


async def remove_conversation(call: ApiCall[NoContent, NoContent]) -> ConversationDeleted:
    """Delete a conversation with all its data."""
    async with call.context.database.read() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
    await delete_conversation(call)
    return ConversationDeleted(id=openai_ids.from_conversation(found.id))


async def add_items(call: ApiCall[ItemsCreate, NoContent]) -> ItemList:
    """Add messages to a conversation; the agent gets them with its next turn."""
    async with call.context.database.begin() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        state = dict(await client_state.get_state(connection, found.id))
        added = await _add_items(connection, found, state, call.body.items)
    return _to_page(added, has_more=False)


async def list_items(call: ApiCall[NoContent, ItemPageQuery]) -> ItemList:
    """List a conversation's messages, and calls of the client's tools with their results."""
    query = call.query
    async with call.context.database.read() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        items = await _load_items(connection, found)
    if query.order == "desc":
        items.reverse()
    if query.after is not None:
        places = [place for place, item in enumerate(items, 1) if item["id"] == query.after]
        if not places:
            raise invalid_field("?/after", f"there is no item {query.after!r} in this conversation")
        items = items[places[0] :]
    return _to_page(items[: query.limit], has_more=len(items) > query.limit)


async def get_item(call: ApiCall[NoContent, NoContent]) -> ConversationItem:
    """Show one of the items that lists have."""
    async with call.context.database.read() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        return ConversationItem(**await _require_item(connection, found, call.path["item"]))


async def remove_item(call: ApiCall[NoContent, NoContent]) -> ConversationObject:
    """Delete an item that a client added, if no turn has had it yet."""
    async with call.context.database.begin() as connection:
        found = await require_conversation(connection, call.account, call.path["id"])
        item = await _require_item(connection, found, call.path["item"])
        state = dict(await client_state.get_state(connection, found.id))
        added = [one for one in state.get("items", ()) if one["id"] == item["id"]]
        state["items"] = [one for one in state.get("items", ()) if one not in added]
        if added and await histories.is_unused(connection, found.id):
            await replace_history(connection, found, to_history([*map(_to_earlier, state["items"])]))
            await client_state.set_state(connection, found.id, state)
        else:
            carried = _without(found.carried_context or {}, added)
            await client_state.set_state(connection, found.id, state, carried=carried)
    return _to_object(found, state)


def _without(carried: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what the next turn gets, without an item; raises HttpProblem if an earlier turn has had it."""
    ids, waiting = {one["id"] for one in added if one["text"]}, carried.get(ADDED, ())
    if not added or not ids.issubset(one["id"] for one in waiting):
        raise HttpProblem(409, "the agent has had this item: delete the conversation to remove it")
    return {**carried, ADDED: [one for one in waiting if one["id"] not in ids]}


async def _require_item(connection: Connection, conversation: Conversation, item: str) -> dict[str, Any]:
    found = [one for one in await _load_items(connection, conversation) if one["id"] == item]
    if not found:
        raise not_found("there is no such item in this conversation")
    return found[0]


async def _add_items(
    connection: Connection, conversation: Conversation, state: dict[str, Any], items: Sequence[InputMessage]
) -> list[dict[str, Any]]:
    """Add items to a conversation's state and to its history; returns them.

    After the first turn, the next one gets them as what was said before it.
    """
    now = rfc3339(utc_now())
    added = [one for place, item in enumerate(items) if (one := _to_added(item, place, now)) is not None]
    state["items"] = [*state.get("items", ()), *added]
    if len(json.dumps(state["items"])) > MAX_STATE:
        raise invalid_field("/items", f"at most {MAX_STATE} characters in all items that were added")
    if await histories.is_unused(connection, conversation.id):
        await replace_history(connection, conversation, to_history([*map(_to_earlier, state["items"])]))
        await client_state.set_state(connection, conversation.id, state)
        return [_added_item(one) for one in added]
    said = {one["id"]: _to_earlier(one) for one in added if one["text"]}
    carried = with_added(conversation.carried_context, said)
    await client_state.set_state(connection, conversation.id, state, carried=carried)
    return [_added_item(one) for one in added]


def _to_earlier(added: Mapping[str, Any]) -> EarlierMessage:
    """Return an added item as a part of the history."""
    message = {"role": added["role"], "content": added["text"]}
    return InputMessage.model_validate(added.get("item") or message).to_earlier()


def _to_added(message: InputMessage, place: int, now: str) -> dict[str, Any] | None:
    """Return what is kept of an item, or None for an empty one; the text is what the agent gets of it."""
    item = to_kept_item(message, place)
    if item is None and not message.marked_text:
        return None
    text = message.marked_text or ("(empty)" if message.is_output else "")
    kept = {"role": message.role, "text": text, "time": now}
    return {"id": new_id("msg"), **kept} if item is None else {"id": item["id"], **kept, "item": item}


async def _load_items(connection: Connection, conversation: Conversation) -> list[dict[str, Any]]:
    """Return the newest items of a conversation, oldest first."""
    state = await client_state.get_state(connection, conversation.id)
    placed = [(datetime.fromisoformat(one["time"]), _added_item(one)) for one in state.get("items", ())]
    messages = await store.list_messages(connection, conversation.id, limit=RECENT)
    placed += [(message.created_at, _message_item(message)) for message in messages]
    calls = await approval_store.list_for_account(
        connection, conversation.account, state=None, conversation=conversation.id, limit=RECENT
    )
    for one in calls:
        if one.tool == CLIENT_TOOL:
            placed.append((one.created_at, pending_call_item(one)))
        if one.tool == CLIENT_TOOL and one.state == ANSWERED and one.decided_at is not None:
            placed.append((one.decided_at, output_item(one)))
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def _message_item(message: MessageRow) -> dict[str, Any]:
    text = with_files(message.text, message.attachments)
    if message.role == "assistant":
        return message_item(message.id, text)
    return _input_item(message.id, "user", text)


def _added_item(stored: Mapping[str, Any]) -> dict[str, Any]:
    if "item" in stored:
        return dict(stored["item"])
    if stored["role"] == "assistant":
        return message_item(stored["id"], stored["text"])
    role = "user" if stored["role"] == "tool" else stored["role"]
    return _input_item(stored["id"], role, stored["text"])


def _input_item(message: str, role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": message, "role": role, "status": "completed", "content": content}


def _to_page(items: Sequence[dict[str, Any]], *, has_more: bool) -> ItemList:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return ItemList(data=list(items), has_more=has_more, first_id=first, last_id=last)


def _to_object(conversation: Conversation, state: Mapping[str, Any]) -> ConversationObject:
    return ConversationObject(
        id=openai_ids.from_conversation(conversation.id),
        created_at=int(conversation.created_at.timestamp()),
        metadata=dict(state.get("metadata") or {}),
    )


_ONE = "/v1/conversations/{id}"

ROUTES = (
    ApiRoute(
        method="POST",
        path="/v1/conversations",
        access=KeyAccess("chat"),
        handler=create_conversation,
        summary="create a conversation",
        request_model=ConversationCreate,
        optional_body=True,
        response_model=ConversationObject,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path=_ONE,
        access=KeyAccess("read"),
        handler=get_conversation,
        summary="show a conversation",
        response_model=ConversationObject,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path=_ONE,
        access=KeyAccess("chat"),
        handler=update_conversation,
        summary="replace a conversation's metadata",
        request_model=ConversationMetadata,
        response_model=ConversationObject,
        tag="openai",
    ),
    ApiRoute(
        method="DELETE",
        path=_ONE,
        access=KeyAccess("chat"),
        handler=remove_conversation,
        summary="delete a conversation",
        response_model=ConversationDeleted,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path=f"{_ONE}/items",
        access=KeyAccess("read"),
        handler=list_items,
        summary="list a conversation's items",
        query_model=ItemPageQuery,
        response_model=ItemList,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path=f"{_ONE}/items",
        access=KeyAccess("chat"),
        handler=add_items,
        summary="add messages to a conversation",
        request_model=ItemsCreate,
        response_model=ItemList,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path=f"{_ONE}/items/{{item}}",
        access=KeyAccess("read"),
        handler=get_item,
        summary="show an item of a conversation",
        response_model=ConversationItem,
        tag="openai",
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_ONE}/items/{{item}}",
        access=KeyAccess("chat"),
        handler=remove_item,
        summary="delete an item that no turn has had",
        response_model=ConversationObject,
        error_responses={409: "a turn has had the item"},
        tag="openai",
    ),
)
"""The routes of conversations."""
