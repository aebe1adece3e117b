"""Triggers over HTTP: created by an account, and fired by clients that sign with their secret."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import structlog
from pydantic import Field, SecretStr, StrictStr

from delivery.database.clock import utc_now
from delivery.events.event import new_id
from delivery.webhooks.signing import BadSignature, BadTimestamp, check_timestamp, new_secret
from gateway.accounts.vault import AssociatedData, DecryptionFailed, associated_data
from gateway.conversations.submissions.conversation_lookup import (
    ensure_agent_exists,
    get_or_create_lasting_conversation,
)
from gateway.conversations.submissions.submission import (
    IdempotencyKeyReused,
    QueueFull,
    Submission,
    UnknownAgent,
    UnknownTarget,
    WrongAgent,
)
from gateway.files.storage.storage_quota import MESSAGE_BYTES
from gateway.records.fields import Whsec
from gateway.schedules.triggers import (
    MAX_TEMPLATE,
    InvalidDelivery,
    delivery_id,
    is_command_with_values,
    parse_body,
    render_template,
    verify_delivery,
)
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations import triggers as store
from gateway.store.conversations.triggers import Trigger
from gateway.web.api.turns import log_turn
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.request_body import PRE_AUTH_BYTES, read_bytes
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

log = structlog.get_logger(__name__)

CHANNEL_DELETED = "the channel of the trigger's conversation was deleted: delete the trigger"

MAX_TRIGGERS = 1000
"""Triggers of one account."""

SOURCE = "trigger"
"""The source of the keys of signed requests: the trigger and the request's id."""

SIGNATURE_HEADERS = {
    "webhook-id": "the request's id (Standard Webhooks)",
    "webhook-timestamp": "its time in Unix seconds (Standard Webhooks)",
    "webhook-signature": "`v1,` and the signature; several are separated by spaces (Standard Webhooks)",
    "X-Hub-Signature-256": "`sha256=` and the signature, in place of the three headers above (GitHub)",
    "X-GitHub-Delivery": "the request's id (GitHub)",
}
"""The headers of which a signed request has one kind, with their meaning."""

Name = Annotated[StrictStr, Field(min_length=1, max_length=300)]
SecretField = Annotated[SecretStr, Whsec]


class TriggerCreate(RequestModel):
    """A trigger. A new `conversation` name creates a conversation, with `agent` if that is given.

    `template` is the turn's input: `{{body}}` and `{{field.of.body}}` are replaced by JSON.
    """

    conversation: Name
    agent: Name | None = None
    template: Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEMPLATE)]
    secret: SecretField | None = None


class TriggerResponse(ResponseModel):
    """A trigger without its secret; requests are posted to `path`."""

    id: str
    conversation: str
    template: str
    path: str
    created_by: str
    created_at: datetime


class TriggerCreated(TriggerResponse):
    """A new trigger; `secret` is shown once, and is null if the request gave it."""

    secret: str | None


class TriggerFired(ResponseModel):
    """The turn that the request started, now or when it came for the first time."""

    turnId: str
    conversationId: str
    repeated: bool


async def create(call: ApiCall[TriggerCreate, NoContent]) -> TriggerCreated:
    """Create a trigger."""
    body, trigger = call.body, new_id("trg")
    if is_command_with_values(body.template):
        raise invalid_field(
            "/template", "a template with a command (!) cannot contain values of a request: remove them"
        )
    secret = body.secret.get_secret_value() if body.secret else new_secret()
    sealed = call.context.records.vault.encrypt(_secret_context(trigger), secret)
    submission = Submission(
        account=call.account,
        text="",
        asker=call.principal.key,
        agent=body.agent,
        conversation=body.conversation,
    )
    async with call.services.transactions.begin("command") as tx:
        if await store.count(tx.connection, call.account) >= MAX_TRIGGERS:
            raise HttpProblem(429, f"the account has {MAX_TRIGGERS} triggers, which is the limit: delete one")
        try:
            conversation = await get_or_create_lasting_conversation(tx, submission)
        except UnknownTarget as error:
            pointer = "/agent" if isinstance(error, UnknownAgent) else "/conversation"
            raise invalid_field(pointer, str(error)) from None
        except WrongAgent as error:
            raise HttpProblem(409, str(error)) from None
        made = Trigger(
            id=trigger,
            account=call.account,
            conversation=conversation.id,
            template=body.template,
            sealed=sealed,
            created_by=call.principal.key,
            created_at=utc_now(),
        )
        await store.insert_trigger(tx.connection, made)
    shown = to_response(made).model_dump()
    return TriggerCreated(**shown, secret=None if body.secret else secret)


async def list_triggers(call: ApiCall[NoContent, PageQuery]) -> ListPage[TriggerResponse]:
    """List the triggers in the order of their creation."""
    query = call.query
    async with call.context.database.read() as connection:
        found = await store.list_for_account(
            connection, call.account, after=query.after, limit=query.limit + 1
        )
    page, following = paginate(found, query.limit)
    return ListPage[TriggerResponse](items=[to_response(one) for one in page], next=following)


async def delete(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a trigger; a turn that it has started continues."""
    async with call.context.database.begin() as connection:
        if not await store.delete_trigger(connection, call.account, call.path["id"]):
            raise not_found("there is no such trigger in this account")


async def fire(call: ApiCall[NoContent, NoContent]) -> TriggerFired:
    """Start a trigger's turn, once for each id of a signed request."""
    request = call.request
    body = await read_bytes(request, limit=PRE_AUTH_BYTES, deadline=call.context.limits.body_deadline)
    headers = {name.lower(): value for name, value in request.headers.items()}
    trigger = await _verified(call, headers, body)
    await _ensure_answerable(call, trigger)
    try:
        submission = Submission(
            account=trigger.account,
            text=render_template(trigger.template, parse_body(body)),
            asker=trigger.created_by,
            conversation=trigger.conversation,
            source=SOURCE,
            key=f"{trigger.id} {delivery_id(headers)}",
            own_turn=True,
            notify=True,
        )
        async with call.services.file_services.quota.reserve(
            submission.account, len(submission.text.encode()), at_least=MESSAGE_BYTES
        ):
            submitted = await call.services.submissions.submit(submission)
    except InvalidDelivery as error:
        raise HttpProblem(400, str(error)) from None
    except IdempotencyKeyReused as error:
        raise HttpProblem(409, str(error)) from None
    except QueueFull as error:
        raise HttpProblem(429, str(error), headers={"Retry-After": "5"}) from None
    log_turn(call, submitted.turn, submitted.conversation)
    return TriggerFired(
        turnId=submitted.turn, conversationId=submitted.conversation, repeated=submitted.repeated
    )


async def _verified(call: ApiCall[NoContent, NoContent], headers: dict[str, str], body: bytes) -> Trigger:
    """Return the trigger that signed a request; the same 401 for an unknown one and a wrong signature.

    A 401 for a time out of tolerance says so, whether there is such a trigger or not.
    """
    _check_time(headers)
    async with call.context.database.read() as connection:
        found = await store.get_by_id(connection, call.path["id"])
    refused = HttpProblem(401, "no such trigger signed this request")
    if found is None:
        raise refused
    try:
        secret = call.context.records.vault.decrypt(_secret_context(found.id), found.sealed)
        verify_delivery(secret, headers, body, now=utc_now())
    except DecryptionFailed as error:  # a sender gives up after a 401, and repeats the request after this
        log.error("secret.decryption_failed", table="triggers", row=found.id, error=str(error))  # noqa: TRY400
        raise HttpProblem(503, "the signature cannot be checked now", headers={"Retry-After": "30"}) from None
    except BadSignature:
        raise refused from None
    return found


def _check_time(headers: dict[str, str]) -> None:
    if "webhook-signature" not in headers:
        return  # GitHub's signatures have no time
    try:
        check_timestamp(headers, now=utc_now())
    except BadTimestamp as error:
        raise HttpProblem(401, str(error)) from None
    except BadSignature:
        return  # malformed: refused like a wrong signature


async def _ensure_answerable(call: ApiCall[NoContent, NoContent], trigger: Trigger) -> None:
    """Raise HttpProblem if no agent would answer, or nobody would get the answer."""
    async with call.context.database.read() as connection:
        conversation = await conversations.get_by_id(connection, trigger.conversation)
        if conversation is None:
            raise not_found("the trigger was deleted with its conversation")
        if conversation.channel and await records.get_by_id(connection, conversation.channel) is None:
            raise HttpProblem(409, CHANNEL_DELETED)
        try:
            await ensure_agent_exists(connection, conversation)
        except UnknownTarget as error:
            raise HttpProblem(409, str(error)) from None


def to_response(trigger: Trigger) -> TriggerResponse:
    """Return a trigger as a response."""
    return TriggerResponse(
        id=trigger.id,
        conversation=trigger.conversation,
        template=trigger.template,
        path=f"/triggers/{trigger.id}",
        created_by=trigger.created_by,
        created_at=trigger.created_at,
    )


def _secret_context(trigger: str) -> AssociatedData:
    return associated_data("triggers", trigger, "secret")
