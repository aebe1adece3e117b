"""Models of vendors that have no client of our own, through pydantic-ai. Importing this takes a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pydantic_ai
from httpx2 import AsyncClient, ConnectError, Request
from pydantic_ai import direct
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, create_async_httpx2_client
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from egress.urls import Origin, origin_of
from gateway.agents.clients import messages as stored
from gateway.agents.clients.enforced_schema import enforced_schema
from gateway.agents.clients.error_responses import says_too_long
from gateway.agents.clients.errors import (
    ModelCallError,
    ModelContextExceeded,
    ModelKeyRefused,
    ModelQuotaUsedUp,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelTimedOut,
    ModelUnknown,
    ModelUnreachable,
)
from gateway.agents.clients.http import sends_foreign_key
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.port import ModelClient, ModelQuery
from gateway.agents.clients.reply import TextJoiner

pydantic_ai.BANNER_ENABLED = False

Received = asyncio.Queue[str | ChatMessage | None]
"""What a request received: pieces of text, the response, and None at the end."""

CANCEL_RETRY_SECONDS = 1.0

_NO_KEY = "no key is configured"
"""Google's library sends a key always; a server of one's own ignores it."""

_FIRST_SERVER_ERROR = 500
_ERRORS: tuple[tuple[type[Exception], type[ModelCallError]], ...] = (
    (ModelAuthenticationError, ModelKeyRefused),
    (ModelNotFoundError, ModelUnknown),
    (ModelQuotaExceededError, ModelQuotaUsedUp),
    (ModelContextWindowExceededError, ModelContextExceeded),
    (ModelRateLimitError, ModelRateLimited),
    (ModelConnectionError, ModelUnreachable),
    (ModelServerError, ModelServerFailed),
    (ModelUnavailableError, ModelServerFailed),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PydanticAiOptions:
    """How often a request is sent again, and the seconds that a whole answer may take (0: any number)."""

    retries: int = 0
    seconds: float = 0.0


class PydanticAiClient:
    """The connections of all models that are used through pydantic-ai."""

    def __init__(self, bound_keys: Mapping[str, frozenset[Origin]]) -> None:
        self._http = open_http_client(bound_keys)

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        await self._http.aclose()

    def google(self, name: str, *, key: str | None, base_url: str, options: PydanticAiOptions) -> ModelClient:
        """Return a model of Google's Gemini API."""
        provider = GoogleProvider(api_key=key or _NO_KEY, base_url=base_url, http_client=self._http)
        return LibraryModel(GoogleModel(name, provider=provider), options)


def open_http_client(bound_keys: Mapping[str, frozenset[Origin]]) -> AsyncClient:
    """Return the connections that the models share; a key goes nowhere but to its vendor's origins."""
    client = create_async_httpx2_client()

    async def refuse_foreign_keys(request: Request) -> None:
        origin = origin_of(str(request.url))
        if sends_foreign_key(request.headers.values(), origin, bound_keys):
            raise ConnectError(f"{origin} is not an address to which this key may be sent")

    client.event_hooks["request"].append(refuse_foreign_keys)
    return client


class LibraryModel(ModelClient):
    """One model of pydantic-ai. A request runs in a task of its own, because the library cancels tasks."""

    def __init__(self, model: Model, options: PydanticAiOptions) -> None:
        self._model = model
        self._seconds = options.seconds
        self._settings = ModelSettings(max_retries=options.retries)

    async def ask(self, query: ModelQuery) -> AsyncGenerator[str | ChatMessage, None]:
        """Yield the answer as the port specifies."""
        received: Received = asyncio.Queue()
        task = asyncio.create_task(self._run(query, received), name=f"request to {self._model.model_name}")
        joiner = TextJoiner(asyncio.get_running_loop().time)
        try:
            while (item := await _next(received, joiner)) is not None:
                if not isinstance(item, str):
                    if joiner.is_waiting:
                        yield joiner.take(is_end=True)
                    yield item
                    continue
                joiner.add(item)
                if joiner.is_due and (text := joiner.take()):
                    yield text
            await task
        finally:
            await _cancel_and_wait(task)

    async def _run(self, query: ModelQuery, received: Received) -> None:
        """Put pieces of text, the response, and None into the queue; raises ModelCallError."""
        try:
            with _translated(self._model.model_name):
                async with asyncio.timeout(self._seconds or None):
                    await self._stream(query, received)
        except TimeoutError:
            raise ModelTimedOut(self._model.model_name, self._seconds) from None
        finally:
            received.put_nowait(None)

    async def _stream(self, query: ModelQuery, received: Received) -> None:
        async with direct.model_request_stream(
            self._model,
            ModelMessagesTypeAdapter.validate_json(json.dumps(_library_form(query.messages))),
            model_settings=self._settings | _tool_choice(query),
            model_request_parameters=_parameters(query, self._model),
        ) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    received.put_nowait(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    received.put_nowait(event.delta.content_delta)
            received.put_nowait(_stored_form(stream.get()))


async def _next(received: Received, joiner: TextJoiner) -> str | ChatMessage | None:
    """Return the next item; an empty text if there is none when joined text is due."""
    try:
        async with asyncio.timeout_at(joiner.due_at if joiner.is_waiting else None):
            return await received.get()
    except TimeoutError:
        return ""


def _library_form(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages as the library reads them: it must know why a response was unusable."""
    return [stored.with_parts(message, list(map(_library_part, message["parts"]))) for message in messages]


def _library_part(part: ChatPart) -> ChatPart:
    if part["part_kind"] != "retry-feedback":
        return part
    return cast("ChatPart", {"retry": {"cause": "model_retry"}, **part})


def _parameters(query: ModelQuery, model: Model) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=one.name, description=one.description, parameters_json_schema=dict(one.schema))
        for one in query.tools
    ]
    parts = [InstructionPart(content=query.instructions)] if query.instructions else None
    output = _output_object(query, model)
    return ModelRequestParameters(
        function_tools=tools,
        instruction_parts=parts,
        output_mode="native" if output else "text",
        output_object=output,
    )


def _output_object(query: ModelQuery, model: Model) -> OutputObjectDefinition | None:
    """Return the format that the model enforces; None if there is none, or not for a request with tools."""
    output, profile = query.output_format, model.profile
    takes_it = profile.get("supports_json_schema_output", False) and (
        not query.tools or profile.get("google_supports_tool_combination", False)
    )
    schema = enforced_schema(output.schema) if output and takes_it else None
    if output is None or schema is None:
        return None
    return OutputObjectDefinition(
        json_schema=schema, name=output.name, description=output.description or None, strict=True
    )


def _tool_choice(query: ModelQuery) -> ModelSettings:
    return ModelSettings(tool_choice="required" if query.requires_call and query.tools else "auto")


def _stored_form(response: ModelResponse) -> ChatMessage:
    (found,) = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)
    message: ChatMessage = cast("Any", found)
    return message


@contextmanager
def _translated(model: str) -> Iterator[None]:
    """Raise the library's errors as errors of model clients."""
    try:
        yield
    except ModelRequestTimeout as error:
        raise ModelTimedOut(model, error.timeout) from error
    except AgentRunError as error:
        raise to_call_error(model, error) from error


def to_call_error(model: str, error: AgentRunError) -> ModelCallError:
    """Return an error of the library as an error of model clients."""
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), None)
    if kind is None and status is not None:
        kind = ModelServerFailed if status >= _FIRST_SERVER_ERROR else ModelRequestRefused
    if kind is None:
        kind = ModelUnreachable if isinstance(error, ModelAPIError) else ModelRequestRefused
    body = str(error.body) if isinstance(error, ModelHTTPError) else ""
    if kind is ModelRequestRefused and says_too_long(body):
        kind = ModelContextExceeded
    return kind(model, str(error), status=status, body=body)


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a request and wait until its connection is closed.

    Cancelling is repeated: a library that catches CancelledError at the wrong moment swallows one.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_RETRY_SECONDS)
    if not task.cancelled():
        task.exception()
