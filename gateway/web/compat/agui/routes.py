"""AG-UI's line of the URL table."""

from __future__ import annotations

from gateway.web.compat.agui import runs
from gateway.web.compat.agui.requests import AgentQuery, RunAgentInput
from gateway.web.http import attachments
from gateway.web.http.auth import KeyAccess
from gateway.web.http.route import ApiRoute

ROUTES = (
    ApiRoute(
        method="POST",
        path="/agui",
        access=KeyAccess("chat"),
        handler=runs.run,
        summary="run an agent over AG-UI",
        request_model=RunAgentInput,
        query_model=AgentQuery,
        media_type="text/event-stream",
        streams=lambda _body: True,
        error_responses={409: "the thread belongs to another agent"},
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="agui",
    ),
)
