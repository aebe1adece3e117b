"""Webhook endpoints over HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from sqlalchemy.exc import IntegrityError

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.webhooks import endpoints as store
from delivery.webhooks.endpoints import Endpoint
from gateway.records import webhooks
from gateway.records.errors import RecordNameTaken
from gateway.records.fields import NEVER_SENT, EventPattern, HookUrl, Name, Whsec, is_sent
from gateway.store.conversations import conversations
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import HttpProblem, invalid, too_many
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel
from sandbox.config import ConfigProblem as Fault


def _sent_pattern(pattern: str) -> str:
    """Return a pattern; raises ValueError for one that selects only events that are never sent."""
    if not is_sent(pattern):
        raise ValueError(NEVER_SENT)
    return pattern


SentPattern = Annotated[EventPattern, AfterValidator(_sent_pattern)]
EventPatterns = Annotated[tuple[SentPattern, ...], Field(min_length=1, max_length=50)]
SecretField = Annotated[SecretStr, Whsec]


class WebhookCreate(RequestModel):
    """The body that creates an endpoint; `ordered` sends one event at a time."""

    url: HookUrl
    events: EventPatterns = ("agent.finished",)
    name: Name | None = None
    conversation: str | None = Field(default=None, min_length=1, max_length=300)
    secret: SecretField | None = None
    ordered: bool = False


class WebhookUpdate(RequestModel):
    """The fields to change; `enabled: true` enables a disabled endpoint again."""

    url: HookUrl | None = None
    events: EventPatterns | None = None
    name: Name | None = None
    enabled: bool | None = None
    ordered: bool | None = None


class WebhookRotate(RequestModel):
    """The body that rotates a secret; without `secret` the gateway makes the new one."""

    secret: SecretField | None = None


class WebhookEndpointResponse(ResponseModel):
    """An endpoint, without its secret."""

    id: str
    name: str | None
    url: str
    events: list[str]
    conversation: str | None
    enabled: bool
    state: Literal["enabled", "disabled"]
    disabled_why: str | None
    ordered: bool
    failing_since: datetime | None
    created_at: datetime


class WebhookWithSecret(WebhookEndpointResponse):
    """An endpoint with its new secret, which is returned only here."""

    secret: str | None


def to_response(endpoint: Endpoint) -> WebhookEndpointResponse:
    """Return an endpoint as a response, without its secret."""
    return WebhookEndpointResponse(
        id=endpoint.id,
        name=endpoint.name,
        url=endpoint.url,
        events=list(endpoint.events),
        conversation=endpoint.conversation,
        enabled=endpoint.disabled_at is None,
        state="enabled" if endpoint.disabled_at is None else "disabled",
        disabled_why=endpoint.disabled_why,
        ordered=endpoint.ordered,
        failing_since=endpoint.failing_since,
        created_at=endpoint.created_at,
    )


def _with_secret(created: webhooks.EndpointWithSecret) -> WebhookWithSecret:
    return WebhookWithSecret(**to_response(created.endpoint).model_dump(), secret=created.secret)


async def create_webhook(call: ApiCall[WebhookCreate, NoContent]) -> WebhookWithSecret:
    """Create an endpoint; its secret is returned once."""
    body, limit = call.body, call.context.limits.webhooks
    async with call.context.database.begin() as connection:
        if await store.count(connection, call.account) >= limit:
            raise too_many("webhooks", limit, "webhook_limit")
        conversation = None
        if body.conversation is not None:
            found = await conversations.get(connection, call.account, body.conversation)
            if found is None:
                detail = "there is no such conversation in this account"
                raise invalid([Fault(pointer="/conversation", detail=detail)])
            conversation = found.id
        secret = await webhooks.create(
            connection,
            call.context.records.vault,
            call.account,
            url=call.context.records.callable_url(body.url, "/url"),
            events=body.events,
            name=body.name,
            conversation=conversation,
            secret=body.secret.get_secret_value() if body.secret else None,
            ordered=body.ordered,
        )
    return _with_secret(secret)


async def list_webhooks(call: ApiCall[NoContent, PageQuery]) -> ListPage[WebhookEndpointResponse]:
    """List the account's endpoints."""
    async with call.context.database.read() as connection:
        found = await store.list_for_account(
            connection, call.account, after=call.query.after, limit=call.query.limit + 1
        )
    page, following = paginate(found, call.query.limit)
    return ListPage[WebhookEndpointResponse](
        items=[to_response(endpoint) for endpoint in page], next=following
    )


async def get_webhook(call: ApiCall[NoContent, NoContent]) -> WebhookEndpointResponse:
    """Return one endpoint."""
    async with call.context.database.read() as connection:
        return to_response(await webhooks.get(connection, call.account, call.path["id"]))


async def update_webhook(call: ApiCall[WebhookUpdate, NoContent]) -> WebhookEndpointResponse:
    """Update an endpoint."""
    body = call.body
    async with call.context.database.begin() as connection:
        present = await webhooks.get(connection, call.account, call.path["id"], locked=True)
        ensure_preconditions(call.request, to_response(present))
        if body.model_fields_set != {"enabled"}:
            webhooks.ensure_own(present)
        if body.enabled and present.disabled_why == store.CONVERSATION_DELETED:
            raise HttpProblem(
                409, "the webhook's conversation was deleted: delete it, and create another one"
            )
        new_url = None if body.url is None else call.context.records.callable_url(body.url, "/url")
        changed = replace(
            present,
            url=new_url or present.url,
            events=body.events or present.events,
            name=body.name or present.name,
            ordered=present.ordered if body.ordered is None else body.ordered,
        )
        if body.enabled is not None:
            now = None if body.enabled else present.disabled_at or utc_now()
            why = None if body.enabled else present.disabled_why or "switched off by its owner"
            changed = replace(changed, disabled_at=now, disabled_why=why, failing_since=None)
        try:
            changed = await store.update_endpoint(connection, changed, before=present)
        except IntegrityError as error:
            raise RecordNameTaken(f"there is already a webhook named {body.name!r}") from error
    services = call.context.services
    if services is not None:  # else another process sends what waited
        services.transactions.wake_soon(WorkQueue.HOOK, changed.id, account=call.account)
    return to_response(changed)


async def delete_webhook(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete an endpoint."""
    async with call.context.database.begin() as connection:
        endpoint = await webhooks.get(connection, call.account, call.path["id"], locked=True)
        ensure_preconditions(call.request, to_response(endpoint))
        webhooks.ensure_own(endpoint)
        await store.delete_endpoint(connection, call.account, endpoint.id)


async def rotate_webhook(call: ApiCall[WebhookRotate, NoContent]) -> WebhookWithSecret:
    """Rotate an endpoint's secret; for a day, deliveries are signed with the old one too."""
    vault, secret = call.context.records.vault, call.body.secret
    chosen = secret.get_secret_value() if secret is not None else None
    async with call.context.database.begin() as connection:
        rotated = await webhooks.rotate(connection, vault, call.account, call.path["id"], secret=chosen)
    return _with_secret(rotated)
