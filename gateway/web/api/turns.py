"""Turns over HTTP: start, show and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

import structlog
from pydantic import Field, RootModel, SecretStr, StrictBool, StrictStr, model_validator

from delivery.broker.port import WorkQueue
from delivery.deliveries import queries
from delivery.events.event import new_id
from gateway.conversations.submissions import submission as submissions
from gateway.conversations.submissions.submission import Submission, Submitted
from gateway.files.storage.storage_quota import MESSAGE_BYTES
from gateway.records import webhooks
from gateway.records.fields import HookUrl, Name, Whsec
from gateway.store.job_state import JobState
from gateway.store.turn_state import TurnState
from gateway.store.turns import jobs as job_store
from gateway.store.turns import lineage, turn_queue, turn_steps
from gateway.store.turns import turns as store
from gateway.store.turns.jobs import Job
from gateway.store.turns.turn_steps import StepRow, StepState
from gateway.store.turns.turns import Turn
from gateway.web.api.conversations import require_conversation
from gateway.web.api.deliveries import DeliveryResponse, to_responses
from gateway.web.api.files.file_shapes import StoredFileShape, UsageShape
from gateway.web.api.handover import OperatorMessageSent, send_as_operator
from gateway.web.api.trace import TRACEPARENT, parse_traceparent
from gateway.web.http import idempotency
from gateway.web.http.attachments import (
    AttachmentCreate,
    Attachments,
    InvalidAttachment,
    assign,
    invalid_attachment,
    save_all,
)
from gateway.web.http.pagination import ListPage
from gateway.web.http.problems import REQUEST_ID, HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

log = structlog.get_logger(__name__)

Text = Annotated[StrictStr, Field(min_length=1, max_length=200_000)]


class TurnWebhook(RequestModel):
    """The webhook of a turn's results: a URL of its own, or one of the account's."""

    url: HookUrl | None = None
    secret: Annotated[SecretStr, Whsec] | None = None
    id: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> TurnWebhook:
        if (self.url is None) == (self.id is None) or (self.id is not None and self.secret is not None):
            raise ValueError("give either url (and secret) or id")
        return self


class TurnCreate(RequestModel):
    """The body that starts a turn; without a conversation a new one is created."""

    input: Text
    conversation: Name | None = None
    attachments: Attachments = ()
    webhook: TurnWebhook | None = None


class MessageCreate(RequestModel):
    """The body that sends a message; a `literal` text is never taken for a command.

    `as: "operator"` sends the text in the agent's place, while a person handles the conversation.
    """

    text: Text
    attachments: Attachments = ()
    literal: StrictBool = False
    sent_as: Literal["operator"] | None = Field(default=None, alias="as")

    @model_validator(mode="after")
    def _refuse_files_of_operators(self) -> MessageCreate:
        if self.sent_as is not None and self.attachments:
            raise ValueError("an operator's message has no attachments: leave them out")
        return self


class TurnAccepted(ResponseModel):
    """The turn is queued; `webhook_secret` verifies its webhook's deliveries and is returned once."""

    turnId: str
    conversationId: str
    statusUrl: str
    webhook_secret: str | None = None


class CommandExecuted(ResponseModel):
    """The message was a command, such as `/stop`; a `reply` of null follows later in the conversation."""

    command: str
    reply: str | None
    conversationId: str


class MessageAccepted(RootModel[TurnAccepted | CommandExecuted | OperatorMessageSent]):
    """The result of a message: a queued turn, an executed command, or an operator's message."""


class TurnStatus(ResponseModel):
    """A turn with its deliveries.

    `position` is the number of turns before it in its conversation, null once it has ended. `merged_into` is
    the turn that answers it too, which was running when this one was queued. `next_at` is the time of the
    next attempt while the turn waits for it; `error` is then the reason.
    """

    id: str
    kind: Literal["turn"] = "turn"
    state: TurnState
    conversationId: str
    agent: str
    trigger: str
    resultId: str | None
    attempt: int
    position: int | None
    merged_into: str | None
    cancelling: bool
    output: str | None
    error: str | None
    next_at: datetime | None
    usage: UsageShape | None
    files: tuple[StoredFileShape, ...] = ()
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deliveries: list[DeliveryResponse]


class JobStatus(ResponseModel):
    """A background job with the deliveries of its result."""

    id: str
    kind: Literal["job"] = "job"
    state: JobState
    resultId: str
    conversationId: str
    turnId: str
    follow_up_turn: str | None
    command: str
    exit_code: int | None
    output: str | None
    error: str | None
    truncated: bool
    files: tuple[StoredFileShape, ...] = ()
    created_at: datetime
    finished_at: datetime | None
    deliveries: list[DeliveryResponse]


class TurnOrJobStatus(RootModel[TurnStatus | JobStatus]):
    """The status of a turn or a job, distinguished by `kind`."""


class StepResponse(ResponseModel):
    """One tool call of a turn."""

    id: str
    tool: str
    args: dict[str, Any]
    state: StepState
    result: dict[str, Any] | None
    started_at: datetime
    finished_at: datetime | None


async def start_turn(call: ApiCall[TurnCreate, NoContent]) -> TurnAccepted:
    """Queue a turn of an agent; its results also go to the webhook it names."""
    body = call.body
    endpoint, secret = await _endpoint(call, body.webhook)
    submission = Submission(
        account=call.account,
        text=body.input,
        asker=call.principal.key,
        agent=call.path["id"],
        conversation=body.conversation,
        key=call.idempotency_key,
        endpoint=endpoint,
        attachments=await _save_attachments(call, body.attachments),
        notify=True,
    )
    return await submit(call, submission, secret)


async def send_message(
    call: ApiCall[MessageCreate, NoContent],
) -> TurnAccepted | CommandExecuted | OperatorMessageSent:
    """Send a message to a conversation, or execute the command that it is."""
    async with call.context.database.read() as connection:
        conversation = await require_conversation(connection, call.account, call.path["id"])
    if call.body.sent_as == "operator":
        return await send_as_operator(call, conversation, call.body.text)
    if not call.body.literal and not call.body.attachments:
        done = await call.services.client_commands.execute(
            call.account, conversation.id, call.body.text, by=call.principal.key, key=call.idempotency_key
        )
        if done is not None:
            return CommandExecuted(command=done.name, reply=done.reply, conversationId=conversation.id)
    submission = Submission(
        account=call.account,
        text=call.body.text,
        asker=call.principal.key,
        conversation=conversation.id,
        key=call.idempotency_key,
        attachments=await _save_attachments(call, call.body.attachments),
        notify=True,
    )
    return await submit(call, submission)


async def _save_attachments(
    call: ApiCall[Any, NoContent], attachments: Sequence[AttachmentCreate]
) -> list[dict[str, Any]]:
    try:
        return await save_all(call.services, call.account, attachments)
    except InvalidAttachment as error:
        raise invalid_attachment(error, error.pointer) from None


async def submit(call: ApiCall[Any, Any], submission: Submission, secret: str | None = None) -> TurnAccepted:
    """Queue a turn; raises HttpProblem when it is refused."""
    taken = await queue_turn(call, submission)
    base = (call.context.public_url or "").rstrip("/")
    return TurnAccepted(
        turnId=taken.turn,
        conversationId=taken.conversation,
        statusUrl=f"{base}/status/{taken.turn}",
        webhook_secret=secret,
    )


async def queue_turn(call: ApiCall[Any, Any], submission: Submission) -> Submitted:
    """Queue a turn below the caller's span, if there is one; raises HttpProblem when it is refused."""
    traceparent = parse_traceparent(call.request.headers.getall(TRACEPARENT, ()))
    try:
        async with call.services.file_services.quota.reserve(
            submission.account, len(submission.text.encode()), at_least=MESSAGE_BYTES
        ):
            taken = await call.services.submissions.submit(replace(submission, traceparent=traceparent))
    except submissions.UnknownAgent as error:
        raise HttpProblem(404, str(error), members={"code": "model_not_found"}) from None
    except submissions.UnknownTarget as error:
        raise not_found(str(error)) from None
    except submissions.WrongAgent as error:
        raise HttpProblem(409, str(error)) from None
    except submissions.IdempotencyKeyReused as error:
        raise invalid_field(idempotency.HEADER, str(error)) from None
    except submissions.QueueFull as error:
        raise HttpProblem(429, str(error), headers={"Retry-After": "5"}) from None
    log_turn(call, taken.turn, taken.conversation)
    stored = [dict(one) for one in submission.attachments]
    await assign(call.services, call.account, stored, conversation=taken.conversation, turn=taken.turn)
    return taken


def log_turn(call: ApiCall[Any, Any], turn: str, conversation: str) -> None:
    """Log which turn a request has started, joined or continued."""
    request = call.request.get(REQUEST_ID)
    log.info("turn.requested", request=request, turn=turn, conversation=conversation)


async def _endpoint(
    call: ApiCall[TurnCreate, NoContent], webhook: TurnWebhook | None
) -> tuple[str | None, str | None]:
    """Return a turn's endpoint, created for a URL, and the secret generated for it."""
    if webhook is None:
        return None, None
    async with call.context.database.begin() as connection:
        if webhook.url is None:
            found = await webhooks.get_enabled(connection, call.account, webhook.id or "")
            return found.id, None
        created = await webhooks.create_for_turn(
            connection,
            call.context.records.vault,
            call.account,
            new_id("trn"),
            url=call.context.records.callable_url(webhook.url, "/webhook/url"),
            secret=webhook.secret.get_secret_value() if webhook.secret else None,
        )
    return created.endpoint.id, created.secret


async def get_status(call: ApiCall[NoContent, NoContent]) -> TurnStatus | JobStatus:
    """Return the status of a turn or a job."""
    wanted = call.path["id"]
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, wanted)
        if turn is not None:
            owed = await queries.list_for_turn(connection, call.account, turn.id)
            place = await turn_queue.queue_position(connection, turn)
            shown = _turn_status(turn, await to_responses(connection, owed), place)
            files = await call.services.file_services.collector.list_for_turn(connection, turn)
            return shown.model_copy(update={"files": tuple(files)})
        job = await job_store.get(connection, call.account, wanted)
        if job is None:
            raise not_found("there is no such turn or job in this account")
        follow_up = await lineage.get_follow_up_turn(connection, job.id)
        owed = await queries.list_for_job(connection, call.account, job.turn, job.id)
        owed += await queries.list_for_turn(connection, call.account, follow_up) if follow_up else []
        files = await call.services.file_services.collector.list_for_job(connection, job)
        ended = _job_status(job, follow_up, await to_responses(connection, owed))
        return ended.model_copy(update={"files": tuple(files)})


def _turn_status(turn: Turn, deliveries: list[DeliveryResponse], position: int | None) -> TurnStatus:
    return TurnStatus(
        id=turn.id,
        state=turn.state,
        conversationId=turn.conversation,
        agent=turn.agent,
        trigger=turn.trigger,
        resultId=turn.job,
        attempt=turn.attempt,
        position=position,
        merged_into=turn.merged_into,
        cancelling=turn.cancel and turn.finished_at is None,
        output=turn.output,
        error=turn.error,
        next_at=turn.next_at if turn.is_delayed else None,
        usage=dict(turn.usage) if turn.usage is not None else None,
        created_at=turn.created_at,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
        deliveries=deliveries,
    )


def _job_status(job: Job, follow_up: str | None, deliveries: list[DeliveryResponse]) -> JobStatus:
    return JobStatus(
        id=job.id,
        state=job.state,
        resultId=job.id,
        conversationId=job.conversation,
        turnId=job.turn,
        follow_up_turn=follow_up,
        command=job.command,
        exit_code=job.exit_code,
        output=job.output if job.state is not JobState.RUNNING else None,
        error=job.reason,
        truncated=job.truncated,
        created_at=job.created_at,
        finished_at=job.finished_at,
        deliveries=deliveries,
    )


async def cancel_turn(call: ApiCall[NoContent, NoContent]) -> TurnStatus:
    """Cancel a turn with its model call and running command; does nothing to an ended turn."""
    core = call.services
    async with core.transactions.begin("turn.cancel") as tx:
        turn = await store.get(tx.connection, call.account, call.path["id"])
        if turn is None:
            raise not_found("there is no such turn in this account")
        if await store.request_cancel(tx.connection, turn.id) is not None:
            tx.wake(WorkQueue.TURN, turn.conversation, account=turn.account)
    core.turn_worker.cancel_local(turn.id)
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, turn.id) or turn
        place = await turn_queue.queue_position(connection, turn)
    return _turn_status(turn, [], place)


async def get_log(call: ApiCall[NoContent, NoContent]) -> ListPage[StepResponse]:
    """Return a turn's run log: every tool call with its arguments, result and times."""
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, call.path["id"])
        if turn is None:
            raise not_found("there is no such turn in this account")
        steps = await turn_steps.list_for_turn(connection, turn.id)
    return ListPage[StepResponse](items=[_step_to_response(step) for step in steps])


def _step_to_response(step: StepRow) -> StepResponse:
    return StepResponse(
        id=step.step_key,
        tool=step.tool,
        args=dict(step.args),
        state=step.state,
        result=dict(step.result) if step.result is not None else None,
        started_at=step.started_at,
        finished_at=step.finished_at,
    )
