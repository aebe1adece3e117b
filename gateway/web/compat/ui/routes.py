"""The AI SDK's lines of the URL table."""

from __future__ import annotations

from gateway.web.compat.ui import streams
from gateway.web.compat.ui.messages import UiChatCreate
from gateway.web.http import attachments
from gateway.web.http.auth import KeyAccess
from gateway.web.http.route import ApiRoute

ROUTES = (
    ApiRoute(
        method="POST",
        path="/agents/{id}/ui",
        access=KeyAccess("chat"),
        handler=streams.start_stream,
        summary="answer a chat of the AI SDK as a UI message stream",
        request_model=UiChatCreate,
        media_type="text/event-stream",
        streams=lambda _body: True,
        error_responses={409: "the chat belongs to another agent", 429: "too much is waiting there"},
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="ui",
    ),
    ApiRoute(
        method="GET",
        path="/agents/{id}/ui/{chat}/stream",
        access=KeyAccess("read"),
        handler=streams.resume_stream,
        summary="resume the stream of a chat's running answer",
        media_type="text/event-stream",
        empty_responses={204: "nothing runs"},
        tag="ui",
    ),
)
