"""OpenAI's lines of the URL table."""

from __future__ import annotations

from gateway.web import attachments
from gateway.web.auth import Key
from gateway.web.openai import completions, responses
from gateway.web.openai.dialect import NewCompletion, NewResponse
from gateway.web.typed import Route

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
        handler=completions.list_models,
        summary="the agents, as models",
        gives=completions.Models,
        tag="openai",
    ),
    Route(
        method="GET",
        path="/v1/models/{id}",
        access=Key("read"),
        handler=completions.show_model,
        summary="an agent, as a model",
        gives=completions.ModelShown,
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        access=Key("chat"),
        handler=completions.complete,
        summary="ask an agent as OpenAI's clients do, streamed on request",
        takes=NewCompletion,
        gives=completions.Completion,
        media="text/event-stream",
        also=_ASKED,
        body_bytes=attachments.BODY_BYTES,
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/responses",
        access=Key("chat"),
        handler=responses.respond,
        summary="ask an agent for a response: whole, streamed, or in the background",
        takes=NewResponse,
        gives=responses.ResponseShown,
        media="text/event-stream",
        also=_ASKED,
        body_bytes=attachments.BODY_BYTES,
        tag="openai",
    ),
    Route(
        method="GET",
        path="/v1/responses/{id}",
        access=Key("read"),
        handler=responses.show,
        summary="a response, or its stream from a position",
        query=responses.ResponseQuery,
        gives=responses.ResponseShown,
        media="text/event-stream",
        tag="openai",
    ),
    Route(
        method="POST",
        path="/v1/responses/{id}/cancel",
        access=Key("chat"),
        handler=responses.cancel,
        summary="cancel a response",
        gives=responses.ResponseShown,
        tag="openai",
    ),
)
