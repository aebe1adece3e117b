"""OpenAI's lines of the URL table."""

from __future__ import annotations

from gateway.web.compat import openai_chat, openai_responses
from gateway.web.compat.openai_requests import NewCompletion, NewResponse
from gateway.web.http import attachments
from gateway.web.http.auth import Key
from gateway.web.http.route import Route

_ASKED = {
    409: "the conversation belongs to another agent",
    424: "the turn failed or was cancelled",
    429: "too much is waiting there",
    504: "no answer in time; the turn goes on",
}

ROUTES = (
    Route(
        method="GET",
        path="/v1/models",
        access=Key("read"),
        handler=openai_chat.list_models,
        summary="the agents, as models",
        gives=openai_chat.Models,
        tag="openai",
    ),
    Route(
        method="GET",
        path="/v1/models/{id}",
        access=Key("read"),
        handler=openai_chat.show_model,
        summary="an agent, as a model",
        gives=openai_chat.ModelShown,
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        access=Key("chat"),
        handler=openai_chat.complete,
        summary="ask an agent as OpenAI's clients do, streamed on request",
        takes=NewCompletion,
        gives=openai_chat.Completion,
        media="text/event-stream",
        also=_ASKED,
        body_bytes=attachments.BODY_BYTES,
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/responses",
        access=Key("chat"),
        handler=openai_responses.respond,
        summary="ask an agent for a response: whole, streamed, or in the background",
        takes=NewResponse,
        gives=openai_responses.ResponseShown,
        media="text/event-stream",
        also=_ASKED,
        body_bytes=attachments.BODY_BYTES,
        tag="openai",
    ),
    Route(
        method="GET",
        path="/v1/responses/{id}",
        access=Key("read"),
        handler=openai_responses.show,
        summary="a response, or its stream from a position",
        query=openai_responses.ResponseQuery,
        gives=openai_responses.ResponseShown,
        media="text/event-stream",
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/responses/{id}/cancel",
        access=Key("chat"),
        handler=openai_responses.cancel,
        summary="cancel a response",
        gives=openai_responses.ResponseShown,
        tag="openai",
    ),
)
