"""Where chat platforms post: the adapter verifies and accepts, we bound the body."""

from __future__ import annotations

from aiohttp import web

from channels.port import Incoming
from gateway.web import bodies
from gateway.web.problems import Problem, not_found
from gateway.web.typed import DOOR, Call, Nothing

_WORDS = {
    400: "the channel's adapter cannot read this",
    401: "this does not prove that it comes from the channel's platform",
    503: "the channel cannot take it now; post it again",
}


async def receive(call: Call[Nothing, Nothing]) -> web.Response:
    """Give a post to the channel's inbox and answer what it says."""
    request, surface = call.request, call.surface
    body = await bodies.read_bytes(request, limit=bodies.PRE_AUTH, deadline=surface.bounds.body_deadline)
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
