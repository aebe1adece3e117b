"""Conversations over HTTP: listed, shown, caught up with, and talked into."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictStr, field_validator

from channels.message import Address
from delivery.database.engine import Connection
from delivery.errors import DeliveryError
from delivery.events import outbox
from gateway.conversations.submission import shown as file_shown
from gateway.store.conversations import conversations as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import Mode
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import jobs as job_store
from gateway.web.api.approvals import ApprovalShown
from gateway.web.api.approvals import shown as approval_shown
from gateway.web.api.jobs import JobDetail
from gateway.web.api.jobs import detailed as job_shown
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import not_found
from gateway.web.http.route import Call, Nothing, Shown, Strict

CATCH_UP = 100


class AddressShown(Shown):
    """The chat thread a conversation stands in."""

    channel: str
    room: str
    thread: str | None


class QueueShown(Shown):
    """What the conversation says of input that arrives while a turn runs; null: what its agent says."""

    mode: Mode | None
    limit: int | None


class Queue(Strict):
    """What happens to input that arrives while a turn runs, and how much may wait."""

    mode: Mode | None = None
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None


class ConversationChange(Strict):
    """What may be changed of a conversation; a queue of null is left to the agent again."""

    queue: Queue | None

    @field_validator("queue", mode="before")
    @classmethod
    def _mode_alone(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given


class ConversationShown(Shown):
    """A conversation; `name` is the caller's own."""

    id: str
    name: str | None
    agent: str
    address: AddressShown | None
    queue: QueueShown
    created_at: datetime


class MessageShown(Shown):
    """Something that was said."""

    id: str
    role: str
    author: str
    text: str
    turn: str | None
    files: list[dict[str, Any]]
    created_at: datetime


class Snapshot(Shown):
    """A conversation as it is: follow its events from `seq` on. `epoch` is null while the broker is away."""

    conversation: str
    messages: list[MessageShown]
    jobs: list[JobDetail]
    approvals: list[ApprovalShown]
    seq: int
    epoch: str | None


class ConversationPage(Page):
    """Which conversations: of a channel, of a room."""

    channel: Annotated[StrictStr, Field(max_length=200)] | None = None
    room: Annotated[StrictStr, Field(max_length=200)] | None = None


def shown(conversation: Conversation) -> ConversationShown:
    """Return a conversation as its owner sees it."""
    address = None
    if conversation.address is not None:
        there = Address.load(conversation.address)
        address = AddressShown(channel=there.channel, room=there.room, thread=there.thread)
    return ConversationShown(
        id=conversation.id,
        name=conversation.name,
        agent=conversation.agent,
        address=address,
        queue=QueueShown(
            mode=Mode(conversation.queue_mode) if conversation.queue_mode else None,
            limit=conversation.queue_limit,
        ),
        created_at=conversation.created_at,
    )


async def found(connection: Connection, account: str, id_or_name: str) -> Conversation:
    """Return an account's conversation; 404 when it has none of this id or name."""
    conversation = await store.find(connection, account, id_or_name)
    if conversation is None:
        raise not_found("there is no such conversation in this account")
    return conversation


async def list_conversations(call: Call[Nothing, ConversationPage]) -> Items[ConversationShown]:
    """List the account's conversations, newest first."""
    query = call.query
    async with call.surface.database.read() as connection:
        channel = None
        if query.channel is not None:
            channel = (await call.surface.book.get(connection, call.account, "channel", query.channel)).id
        some = await store.listed(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            channel=channel,
            room=query.room,
        )
    page, following = cut(some, query.limit)
    return Items[ConversationShown](items=[shown(one) for one in page], next=following)


async def show_conversation(call: Call[Nothing, Nothing]) -> ConversationShown:
    """Return one conversation."""
    async with call.surface.database.read() as connection:
        return shown(await found(connection, call.account, call.path["id"]))


async def remove_conversation(call: Call[Nothing, Nothing]) -> None:
    """Delete a conversation with everything in it; its running jobs are stopped first."""
    async with call.surface.database.read() as connection:
        conversation = await found(connection, call.account, call.path["id"])
    await call.core.erasure.erase(call.account, conversation.id)


async def change_conversation(call: Call[ConversationChange, Nothing]) -> ConversationShown:
    """Say what happens to input that arrives while a turn of the conversation runs."""
    wanted = call.body.queue or Queue()
    async with call.surface.database.begin() as connection:
        conversation = await found(connection, call.account, call.path["id"])
        await store.set_queue(connection, conversation.id, mode=wanted.mode, limit=wanted.limit)
        return shown(await found(connection, call.account, conversation.id))


async def snapshot(call: Call[Nothing, Nothing]) -> Snapshot:
    """Return messages, jobs and open approvals with the cursor from which events continue them."""
    async with call.surface.database.read() as connection:
        conversation = await found(connection, call.account, call.path["id"])
        _n, known = await outbox.last_position(connection, conversation.id)
    seq, epoch = await _cursor(call, conversation.id, known)
    async with call.surface.database.read() as connection:
        spoken = await store.messages_of(connection, conversation.id)
        jobs = await job_store.listed(connection, call.account, conversation=conversation.id, limit=CATCH_UP)
        approvals = await approval_store.listed(
            connection, call.account, conversation=conversation.id, limit=CATCH_UP
        )
        left = await call.core.filing.outgoing.of_jobs(connection, conversation.id, [job.id for job in jobs])
    return Snapshot(
        conversation=conversation.id,
        messages=[
            MessageShown(
                id=one.id,
                role=one.role,
                author=one.author,
                text=one.text,
                turn=one.turn,
                files=[file_shown(file) for file in one.attachments],
                created_at=one.created_at,
            )
            for one in spoken
        ],
        jobs=[job_shown(job, left.get(job.id, [])) for job in reversed(jobs)],
        approvals=[approval_shown(one) for one in reversed(approvals)],
        seq=seq,
        epoch=epoch,
    )


async def _cursor(call: Call[Nothing, Nothing], conversation: str, known: int) -> tuple[int, str | None]:
    """Return a position that is certainly not ahead of what the snapshot shows, nor of the stream.

    What SQL remembers is behind the stream at most; a stream that began anew is behind what SQL remembers.
    """
    try:
        extent = await call.core.stream.extent(conversation)
    except DeliveryError:
        return known, None
    return min(known, extent.last_seq), extent.epoch
