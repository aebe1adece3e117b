"""A2A's lines of the URL table."""

from __future__ import annotations

from gateway.web.compat.a2a import card, methods
from gateway.web.compat.a2a.requests import A2aQuery, A2aRequest, A2aResponse
from gateway.web.http import attachments
from gateway.web.http.auth import KeyAccess, PublicAccess
from gateway.web.http.route import ApiRoute


def _streams(body: A2aRequest) -> bool:
    method = methods.METHODS.get(body.method)
    return method is not None and method.streams


ROUTES = (
    ApiRoute(
        method="GET",
        path="/.well-known/agent-card.json",
        access=PublicAccess(),
        handler=card.get_card,
        summary="describe the gateway to clients of A2A",
        query_model=A2aQuery,
        media_type="application/json",
        tag="a2a",
    ),
    ApiRoute(
        method="POST",
        path=card.PATH,
        access=KeyAccess("read"),
        handler=methods.handle_request,
        summary="call a method of A2A: send a message, or get, follow and cancel a task",
        request_model=A2aRequest,
        query_model=A2aQuery,
        response_model=A2aResponse,
        media_type="text/event-stream",
        streams=_streams,
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="a2a",
    ),
)
"""The Agent2Agent protocol."""
