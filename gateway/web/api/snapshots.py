"""The snapshot of a conversation over HTTP: what it contains, and from where events continue it."""

from __future__ import annotations

from datetime import datetime

from delivery.errors import DeliveryError
from delivery.events import outbox
from gateway.accounts.author_names import read_names_in
from gateway.store.conversations import messages as store
from gateway.store.conversations.messages import MessageRole
from gateway.store.conversations.messages import visible_attachment as file_shown
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import jobs as job_store
from gateway.web.api.approvals import ApprovalResponse
from gateway.web.api.approvals import to_response as approval_shown
from gateway.web.api.conversations import require_conversation
from gateway.web.api.files.file_shapes import MessageFileShape
from gateway.web.api.jobs import JobDetail
from gateway.web.api.jobs import to_detail as job_shown
from gateway.web.http.route import ApiCall, NoContent, ResponseModel

SNAPSHOT_LIMIT = 100


class MessageResponse(ResponseModel):
    """A message of a conversation; `author_name` is null if the author is not known by a name."""

    id: str
    role: MessageRole
    author: str
    author_name: str | None
    text: str
    turn: str | None
    files: list[MessageFileShape]
    created_at: datetime


class ConversationSnapshot(ResponseModel):
    """A conversation's state; read events from `seq` on. `epoch` is null while NATS is unavailable."""

    conversation: str
    messages: list[MessageResponse]
    jobs: list[JobDetail]
    approvals: list[ApprovalResponse]
    seq: int
    epoch: str | None


async def get_snapshot(call: ApiCall[NoContent, NoContent]) -> ConversationSnapshot:
    """Return messages, jobs and open approvals with the cursor from which events continue them."""
    async with call.context.database.read() as connection:
        conversation = await require_conversation(connection, call.account, call.path["id"])
        published = await outbox.last_position(connection, conversation.id)
    seq, epoch = await _cursor(call, conversation.id, published[1] if published else 0)
    async with call.context.database.read() as connection:
        messages = await store.list_messages(connection, conversation.id)
        names = await read_names_in(connection, conversation, {one.author for one in messages})
        jobs = await job_store.list_for_account(
            connection, call.account, conversation=conversation.id, limit=SNAPSHOT_LIMIT
        )
        approvals = await approval_store.list_for_account(
            connection, call.account, conversation=conversation.id, limit=SNAPSHOT_LIMIT
        )
        left = await call.services.file_services.collector.list_for_jobs(
            connection, conversation.id, [job.id for job in jobs]
        )
    return ConversationSnapshot(
        conversation=conversation.id,
        messages=[
            MessageResponse(
                id=one.id,
                role=one.role,
                author=one.author,
                author_name=names.get(one.author),
                text=one.text,
                turn=one.turn,
                files=[file_shown(file) for file in one.attachments],
                created_at=one.created_at,
            )
            for one in messages
        ],
        jobs=[job_shown(job, left.get(job.id, [])) for job in reversed(jobs)],
        approvals=[approval_shown(one) for one in reversed(approvals)],
        seq=seq,
        epoch=epoch,
    )


async def _cursor(
    call: ApiCall[NoContent, NoContent], conversation: str, stored_seq: int
) -> tuple[int, str | None]:
    """Return a position that is not after what the snapshot contains, nor after the stream's end.

    The position in SQL can be behind the stream; a recreated stream is behind the position in SQL.
    """
    try:
        extent = await call.services.stream.bounds(conversation, account=call.account)
    except DeliveryError:
        return stored_seq, None
    return min(stored_seq, extent.last_seq), extent.epoch
