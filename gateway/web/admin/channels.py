"""Where chat platforms post (the adapter verifies and accepts, we bound the body), and how they are asked."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from channels.errors import ChannelError
from channels.port import WebhookRequest
from channels.registry import BrokenChannelPlugin, UnknownChannelKind
from gateway.web.http import request_body
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import AUTHENTICATOR, ApiCall, NoContent, ResponseModel

_DETAILS = {
    400: "the channel's adapter cannot read this",
    401: "this does not prove that it comes from the channel's platform",
    503: "the channel cannot take it now; post it again",
}


class CheckResultResponse(ResponseModel):
    """One thing that was looked at, whether it is well, and what to do if it is not."""

    subject: str
    ok: bool
    detail: str
    remedy: str


class ChannelCheckResponse(ResponseModel):
    """What the platform says of a channel's settings; `ok`: all of it is well."""

    ok: bool
    findings: list[CheckResultResponse]


async def check_channel(call: ApiCall[NoContent, NoContent]) -> ChannelCheckResponse:
    """Ask the channel's platform: is the token right, can it receive, may it send."""
    surface = call.context
    async with surface.database.read() as connection:
        record = await surface.records.get(connection, call.account, "channel", call.path["id"])
    if surface.channels is None:
        raise HttpProblem(503, "this process has no channels")
    try:
        found = await surface.channels.probe(record)
    except (BrokenChannelPlugin, UnknownChannelKind) as error:
        raise HttpProblem(409, str(error)) from error
    except ChannelError as error:
        raise HttpProblem(502, str(error)) from error
    except TimeoutError as error:
        raise HttpProblem(504, "the platform does not answer") from error
    shown = [CheckResultResponse.model_validate(asdict(one)) for one in found]
    return ChannelCheckResponse(ok=all(one.ok for one in found), findings=shown)


async def receive(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Give a post to the channel's inbox and answer what it says."""
    request, surface = call.request, call.context
    body = await request_body.read_bytes(
        request, limit=request_body.PRE_AUTH_BYTES, deadline=surface.limits.body_deadline
    )
    headers = {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}
    answer = None
    if surface.channels is not None:
        answer = await surface.channels.receive(call.path["id"], WebhookRequest(headers=headers, body=body))
    if answer is None:
        raise not_found()
    if answer.status >= 400:  # noqa: PLR2004 - the adapter does not believe it, or cannot keep it
        raise HttpProblem(answer.status, _DETAILS.get(answer.status, ""))
    request.app[AUTHENTICATOR].count_connection(request, call.path["id"])
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)
