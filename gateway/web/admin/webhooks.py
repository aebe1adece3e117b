"""Webhook endpoints over HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.webhooks import endpoints as store
from delivery.webhooks.endpoints import Endpoint
from gateway.records import webhooks
from gateway.records.errors import Taken
from gateway.records.fields import EventPattern, HookUrl, Name, Whsec
from gateway.store.conversations import conversations
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import invalid
from gateway.web.http.route import Call, Nothing, Shown, Strict
from sandbox.config import Problem as Fault

Events = Annotated[tuple[EventPattern, ...], Field(min_length=1, max_length=50)]
Given = Annotated[SecretStr, Whsec]


class NewWebhook(Strict):
    """An endpoint to tell of events, of all conversations or of one; `ordered`: one after the other."""

    url: HookUrl
    events: Events = ("agent.finished",)
    name: Name | None = None
    conversation: str | None = Field(default=None, min_length=1, max_length=300)
    secret: Given | None = None
    ordered: bool = False


class WebhookChange(Strict):
    """What to change; `enabled: true` opens an endpoint again that was given up."""

    url: HookUrl | None = None
    events: Events | None = None
    name: Name | None = None
    enabled: bool | None = None
    ordered: bool | None = None


class WebhookShown(Shown):
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


class WebhookMade(WebhookShown):
    """A new endpoint or one with a new secret, which is told here and never again."""

    secret: str | None


def shown(endpoint: Endpoint) -> WebhookShown:
    """Return an endpoint as its owner sees it."""
    return WebhookShown(
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


def _told(told: webhooks.Told) -> WebhookMade:
    return WebhookMade(**shown(told.endpoint).model_dump(), secret=told.secret)


async def create_webhook(call: Call[NewWebhook, Nothing]) -> WebhookMade:
    """Make an endpoint; its secret is told once."""
    body = call.body
    async with call.surface.database.begin() as connection:
        conversation = None
        if body.conversation is not None:
            found = await conversations.find(connection, call.account, body.conversation)
            if found is None:
                detail = "there is no such conversation in this account"
                raise invalid([Fault(pointer="/conversation", detail=detail)])
            conversation = found.id
        told = await webhooks.create(
            connection,
            call.surface.book.vault,
            call.account,
            url=body.url,
            events=body.events,
            name=body.name,
            conversation=conversation,
            secret=body.secret.get_secret_value() if body.secret else None,
            ordered=body.ordered,
        )
    return _told(told)


async def list_webhooks(call: Call[Nothing, Page]) -> Items[WebhookShown]:
    """List the account's endpoints."""
    async with call.surface.database.read() as connection:
        found = await store.list_of(
            connection, call.account, after=call.query.after, limit=call.query.limit + 1
        )
    page, following = cut(found, call.query.limit)
    return Items[WebhookShown](items=[shown(endpoint) for endpoint in page], next=following)


async def show_webhook(call: Call[Nothing, Nothing]) -> WebhookShown:
    """Return one endpoint."""
    async with call.surface.database.read() as connection:
        return shown(await webhooks.get(connection, call.account, call.path["id"]))


async def change_webhook(call: Call[WebhookChange, Nothing]) -> WebhookShown:
    """Change an endpoint."""
    body = call.body
    async with call.surface.database.begin() as connection:
        present = await webhooks.get(connection, call.account, call.path["id"])
        changed = replace(
            present,
            url=body.url or present.url,
            events=body.events or present.events,
            name=body.name or present.name,
            ordered=present.ordered if body.ordered is None else body.ordered,
        )
        if body.enabled is not None:
            now = None if body.enabled else present.disabled_at or utc_now()
            why = None if body.enabled else present.disabled_why or "switched off by its owner"
            changed = replace(changed, disabled_at=now, disabled_why=why, failing_since=None)
        try:
            await store.change(connection, changed)
        except IntegrityError as error:
            raise Taken(f"there is already a webhook named {body.name!r}") from error
    return shown(changed)


async def remove_webhook(call: Call[Nothing, Nothing]) -> None:
    """Delete an endpoint."""
    async with call.surface.database.begin() as connection:
        endpoint = await webhooks.get(connection, call.account, call.path["id"])
        await store.remove(connection, call.account, endpoint.id)


async def rotate_webhook(call: Call[Nothing, Nothing]) -> WebhookMade:
    """Give an endpoint a new secret; the old one signs beside it for a day."""
    async with call.surface.database.begin() as connection:
        told = await webhooks.rotate(connection, call.surface.book.vault, call.account, call.path["id"])
    return _told(told)
