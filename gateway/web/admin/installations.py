"""The workspaces that installed a channel's app, and the pages on which people install it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Annotated

from aiohttp import web
from pydantic import Field

from channels.errors import ChannelError
from channels.message import PermissionsChanged
from channels.port import ChannelInstallation, ChannelInstallations, ChannelPage, PageRequest
from gateway.ingress.chat_conversations import end_waits, list_waiting
from gateway.records.stored_channel import UnreadableChannel
from gateway.store.accounts import records
from gateway.web.http.auth import PublicAccess
from gateway.web.http.pagination import ListPage
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, ApiRoute, Handler, NoContent, RequestModel, ResponseModel
from gateway.web.http.route_table import ADMIN, ME, READ, delete_route, get_route

NOT_INSTALLABLE = (
    "this channel's bot serves one workspace, so there are no installations to list. "
    "An app of Slack that many workspaces install has client_id and client_secret in place of bot_token"
)


class InstallationQuery(RequestModel):
    """A page of the list; `cursor` is the `next` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=100)] = ""


class InstallationResponse(ResponseModel):
    """A workspace that installed the app, or an organisation; its token is never returned."""

    id: str
    name: str
    installed_at: datetime
    is_organisation: bool


async def list_installations(call: ApiCall[NoContent, InstallationQuery]) -> ListPage[InstallationResponse]:
    """List the workspaces that installed a channel's app."""
    limit = call.query.limit
    async with _installations_of(call) as installations:
        found = await installations.list(after=call.query.cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return ListPage[InstallationResponse](items=[_to_response(one) for one in found[:limit]], next=following)


async def get_installation(call: ApiCall[NoContent, NoContent]) -> InstallationResponse:
    """Return one workspace that installed a channel's app."""
    async with _installations_of(call) as installations:
        found = await installations.get(call.path["installation"])
    if found is None:
        raise not_found("this workspace has not installed the channel's app")
    return _to_response(found)


async def uninstall(call: ApiCall[NoContent, NoContent]) -> None:
    """Uninstall a channel's app from a workspace and delete its token."""
    async with _installations_of(call) as installations:
        try:
            known = await installations.uninstall(call.path["installation"])
        except ChannelError as error:
            raise HttpProblem(502, f"the app is still installed: {error}") from error
    if not known:
        raise not_found("this workspace has not installed the channel's app")


def _to_response(found: ChannelInstallation) -> InstallationResponse:
    return InstallationResponse(
        id=found.id,
        name=found.name,
        installed_at=found.installed_at,
        is_organisation=found.is_organisation,
    )


@asynccontextmanager
async def _installations_of(
    call: ApiCall[NoContent, InstallationQuery] | ApiCall[NoContent, NoContent],
) -> AsyncIterator[ChannelInstallations]:
    """Yield the installations of one of the account's channels; 409 if its app cannot be installed."""
    context = call.context
    async with context.database.read() as connection:
        record = await context.records.get(connection, call.account, "channel", call.path["id"])
    if context.channels is None:
        raise HttpProblem(503, "this process has no channels")
    try:
        async with context.channels.open_installations(record) as found:
            if found is None:
                raise HttpProblem(409, NOT_INSTALLABLE)
            yield found
    except UnreadableChannel as error:
        raise HttpProblem(409, str(error)) from error
    except ChannelError as error:
        raise HttpProblem(502, str(error)) from error


def _page_of_channel(page: ChannelPage) -> Handler:
    """Return the handler that shows a page of the channel with an id."""

    async def show(call: ApiCall[NoContent, NoContent]) -> web.Response:
        return await _show(call, call.path["id"], page)

    return show


def _page_of_platform(page: ChannelPage) -> Handler:
    """Return the handler that shows a page of the only channel of a platform that people can install."""

    async def show(call: ApiCall[NoContent, NoContent]) -> web.Response:
        kind, channels = call.path["kind"], call.context.channels
        installable = channels.list_installable(kind) if channels else []
        if not installable:
            raise not_found(f"no connected channel of the kind {kind} lets people install its app")
        if len(installable) > 1:
            raise HttpProblem(
                409,
                f"{len(installable)} channels of the kind {kind} let people install their apps: "
                f"use /channels/CHANNEL-ID/{page}, and name that address on the platform's page too",
            )
        return await _show(call, installable[0], page)

    return show


async def _show(call: ApiCall[NoContent, NoContent], channel: str, page: ChannelPage) -> web.Response:
    request, context = call.request, call.context
    installations = context.channels.installations(channel) if context.channels else None
    if installations is None:
        raise not_found()
    headers = {name.lower(): request.headers[name] for name in request.headers}
    shown = await installations.show_page(PageRequest(page=page, query=request.query_string, headers=headers))
    if shown.installed is not None:
        await _end_waits(call, PermissionsChanged(key="", channel=channel, extras=shown.installed))
    return web.Response(status=shown.status, text=shown.body, headers=dict(shown.headers))


async def _end_waits(call: ApiCall[NoContent, NoContent], change: PermissionsChanged) -> None:
    """Send what waited for an installation."""
    async with call.services.transactions.begin("installation") as tx:
        record = await records.get_by_id(tx.connection, change.channel)
        if record is not None:
            await end_waits(tx, record.account, await list_waiting(tx.connection, change))


_get_page = partial(get_route, raw=True, hidden=True)
_ALL = f"{ME}/channels/{{id}}/installations"
_ERRORS = {
    409: "the channel's bot serves one workspace, or its record is unreadable",
    502: "the platform refuses, or cannot be reached",
}

ROUTES: tuple[ApiRoute, ...] = (
    _get_page(
        "/channels/{id}/install", PublicAccess(), _page_of_channel("install"), "install a channel's app"
    ),
    _get_page(
        "/channels/{id}/oauth", PublicAccess(), _page_of_channel("oauth"), "complete an app's installation"
    ),
    _get_page(
        "/{kind}/install",
        PublicAccess(),
        _page_of_platform("install"),
        "install the app of a platform's only channel",
    ),
    _get_page(
        "/{kind}/oauth_redirect",
        PublicAccess(),
        _page_of_platform("oauth"),
        "complete the installation of a platform's only app",
    ),
    get_route(
        _ALL,
        READ,
        list_installations,
        "list the workspaces that installed a channel's app",
        query_model=InstallationQuery,
        response_model=ListPage[InstallationResponse],
        error_responses=_ERRORS,
    ),
    get_route(
        f"{_ALL}/{{installation}}",
        READ,
        get_installation,
        "show a workspace that installed a channel's app",
        response_model=InstallationResponse,
        error_responses=_ERRORS,
    ),
    delete_route(
        f"{_ALL}/{{installation}}",
        ADMIN,
        uninstall,
        "uninstall a channel's app from a workspace",
        error_responses=_ERRORS,
    ),
)
