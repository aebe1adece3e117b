"""Where chat platforms post (the adapter verifies and accepts, we bound the body), and how they are asked."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from channels.errors import ChannelError
from channels.port import Incoming
from channels.registry import BrokenPlugin, UnknownKind
from gateway.web.http import request_body
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import DOOR, Call, Nothing, Shown

_WORDS = {
    400: "the channel's adapter cannot read this",
    401: "this does not prove that it comes from the channel's platform",
    503: "the channel cannot take it now; post it again",
}


class FindingShown(Shown):
    """One thing that was looked at, whether it is well, and what to do if it is not."""

    subject: str
    ok: bool
    detail: str
    remedy: str


class Tested(Shown):
    """What the platform says of a channel's settings; `ok`: all of it is well."""

    ok: bool
    findings: list[FindingShown]


async def test_channel(call: Call[Nothing, Nothing]) -> Tested:
    """Ask the channel's platform: is the token right, can it receive, may it send."""
    surface = call.surface
    async with surface.database.read() as connection:
        record = await surface.book.get(connection, call.account, "channel", call.path["id"])
    if surface.inboxes is None:
        raise Problem(503, "this process has no channels")
    try:
        found = await surface.inboxes.probe(record)
    except (BrokenPlugin, UnknownKind) as error:
        raise Problem(409, str(error)) from error
    except ChannelError as error:
        raise Problem(502, str(error)) from error
    except TimeoutError as error:
        raise Problem(504, "the platform does not answer") from error
    shown = [FindingShown.model_validate(asdict(one)) for one in found]
    return Tested(ok=all(one.ok for one in found), findings=shown)


async def receive(call: Call[Nothing, Nothing]) -> web.Response:
    """Give a post to the channel's inbox and answer what it says."""
    request, surface = call.request, call.surface
    body = await request_body.read_bytes(
        request, limit=request_body.PRE_AUTH, deadline=surface.bounds.body_deadline
    )
    headers = {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}
    answer = None
    if surface.inboxes is not None:
        answer = await surface.inboxes.receive(call.path["id"], Incoming(headers=headers, body=body))
    if answer is None:
        raise not_found()
    if answer.status >= 400:  # noqa: PLR2004 - the adapter does not believe it, or cannot keep it
        raise Problem(answer.status, _WORDS.get(answer.status, ""))
    request.app[DOOR].known(request, call.path["id"])
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)
