"""Webhooks of chat platforms, which the adapter verifies, and the check of a channel's settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from aiohttp import web

from channels.errors import ChannelError
from channels.port import WebhookRequest
from gateway.records.stored_channel import UnreadableChannel
from gateway.web.http import request_body
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import AUTHENTICATOR, ApiCall, NoContent, ResponseModel

_DETAILS = {
    400: "the channel's adapter cannot parse this request",
    401: "the request is not signed by the channel's platform",
    503: "the channel cannot store it now; send it again",
}


class CheckResultResponse(ResponseModel):
    """One check of a channel: its subject, whether it passed, and what to do if it failed."""

    subject: str
    ok: bool
    detail: str
    remedy: str


class ChannelCheckResponse(ResponseModel):
    """The result of checking a channel with its platform; `ok` means that every check passed."""

    ok: bool
    findings: list[CheckResultResponse]


async def check_channel(call: ApiCall[NoContent, NoContent]) -> ChannelCheckResponse:
    """Check a channel's token and permissions with its platform."""
    context = call.context
    async with context.database.read() as connection:
        record = await context.records.get(connection, call.account, "channel", call.path["id"])
    if context.channels is None:
        raise HttpProblem(503, "this process has no channels")
    try:
        found = await context.channels.probe(record)
    except UnreadableChannel as error:
        raise HttpProblem(409, str(error)) from error
    except ChannelError as error:
        raise HttpProblem(502, str(error)) from error
    except TimeoutError as error:
        raise HttpProblem(504, "the platform does not answer") from error
    shown = [CheckResultResponse.model_validate(asdict(one)) for one in found]
    return ChannelCheckResponse(ok=all(one.ok for one in found), findings=shown)


class ChannelStatusResponse(ResponseModel):
    """What a channel does in the process that answers, and why it does not receive."""

    state: Literal["receiving", "standby", "paused", "stalled", "trouble", "open", "closed"]
    reason: str


async def channel_status(call: ApiCall[NoContent, NoContent]) -> ChannelStatusResponse:
    """Return what one of the account's channels does in this process."""
    context = call.context
    async with context.database.read() as connection:
        record = await context.records.get(connection, call.account, "channel", call.path["id"])
    if context.channels is None:
        raise HttpProblem(503, "this process has no channels")
    state, reason = context.channels.status(record.id)
    return ChannelStatusResponse.model_validate({"state": state, "reason": reason})


async def receive(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Pass a platform's request to the channel's receiver and return its response."""
    request, context = call.request, call.context
    body = await request_body.read_bytes(
        request, limit=request_body.PRE_AUTH_BYTES, deadline=context.limits.body_deadline
    )
    headers = {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}
    answer = None
    if context.channels is not None:
        answer = await context.channels.receive(call.path["id"], WebhookRequest(headers=headers, body=body))
    if answer is None:
        raise not_found()
    if answer.status >= 400:  # noqa: PLR2004 - the adapter refused it, or could not store it
        raise HttpProblem(answer.status, _DETAILS.get(answer.status, ""))
    request.app[AUTHENTICATOR].count_connection(request, call.path["id"])
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)
