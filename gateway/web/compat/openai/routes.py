"""OpenAI's lines of the URL table."""

from __future__ import annotations

from gateway.web.compat import openai_files
from gateway.web.compat.openai import chat, conversations, responses
from gateway.web.compat.openai_requests import ChatCompletionCreate, InputTokensCreate, ResponseCreate
from gateway.web.http import attachments
from gateway.web.http.auth import KeyAccess
from gateway.web.http.route import ApiRoute

_ERROR_RESPONSES = {
    409: "the conversation belongs to another agent",
    424: "the turn failed or was cancelled",
    429: "too much is waiting there",
    504: "no answer within the time limit; the turn continues",
}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/models",
        access=KeyAccess("read"),
        handler=chat.list_models,
        summary="list the agents as models",
        response_model=chat.ModelList,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path="/v1/models/{id}",
        access=KeyAccess("read"),
        handler=chat.get_model,
        summary="show an agent as a model",
        response_model=chat.ModelResponse,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path="/v1/chat/completions",
        access=KeyAccess("chat"),
        handler=chat.complete,
        summary="create a chat completion, optionally streamed",
        request_model=ChatCompletionCreate,
        streams=lambda body: bool(body.stream),
        response_model=chat.ChatCompletion,
        media_type="text/event-stream",
        error_responses=_ERROR_RESPONSES,
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path="/v1/responses",
        access=KeyAccess("chat"),
        handler=responses.create_response,
        summary="create a response: complete, streamed, or in the background",
        request_model=ResponseCreate,
        streams=lambda body: bool(body.stream),
        response_model=responses.ResponseObject,
        media_type="text/event-stream",
        error_responses=_ERROR_RESPONSES,
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path="/v1/responses/input_tokens",
        access=KeyAccess("read"),
        handler=responses.count_input_tokens,
        summary="estimate the tokens of an input",
        request_model=InputTokensCreate,
        response_model=responses.InputTokens,
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path="/v1/responses/compact",
        access=KeyAccess("chat"),
        handler=responses.refuse_compaction,
        summary="answer that clients need not shorten conversations",
        raw=True,
        hidden=True,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path="/v1/responses/{id}",
        access=KeyAccess("read"),
        handler=responses.get_response,
        summary="show a response, or stream it from a position",
        query_model=responses.ResponseQuery,
        response_model=responses.ResponseObject,
        media_type="text/event-stream",
        tag="openai",
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/responses/{id}",
        access=KeyAccess("chat"),
        handler=responses.delete_response,
        summary="delete a response",
        response_model=responses.ResponseDeleted,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path="/v1/responses/{id}/input_items",
        access=KeyAccess("read"),
        handler=responses.list_input_items,
        summary="list what a response answers",
        query_model=responses.ItemQuery,
        response_model=responses.ItemList,
        tag="openai",
    ),
    ApiRoute(
        method="POST",
        path="/v1/responses/{id}/cancel",
        access=KeyAccess("chat"),
        handler=responses.cancel_response,
        summary="cancel a response",
        response_model=responses.ResponseObject,
        tag="openai",
    ),
    *openai_files.ROUTES,
    *conversations.ROUTES,
)
