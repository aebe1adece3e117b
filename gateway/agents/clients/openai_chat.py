"""OpenAI's chat completions, also of compatible servers ("Create chat completion", "Streaming")."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from gateway.agents.clients import messages as stored
from gateway.agents.clients.error_responses import (
    Refusal,
    kind_of_status,
    read_refusal,
    refusal_of,
    says_too_long,
)
from gateway.agents.clients.errors import (
    ModelCallError,
    ModelContextExceeded,
    ModelKeyRefused,
    ModelQuotaUsedUp,
    ModelUnknown,
)
from gateway.agents.clients.http import ModelAddress, ModelHttp, to_json
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.openai_reply import REASONING_FIELDS, ChatReply
from gateway.agents.clients.port import EarlierTurn, ModelClient, ModelQuery
from gateway.agents.clients.reply import Deadline, read_reply
from gateway.agents.port import OutputFormat, ToolSpec

_QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "exceeded_current_quota_error",
    }
)
_LIMITED = re.compile("rate_limit|too_many_requests")
_BY_CODE: Mapping[str, type[ModelCallError]] = {
    **dict.fromkeys(_QUOTA_CODES, ModelQuotaUsedUp),
    "context_length_exceeded": ModelContextExceeded,
    "exceed_context_size_error": ModelContextExceeded,
    "model_not_found": ModelUnknown,
    "invalid_api_key": ModelKeyRefused,
}

MAX_ENCODED_TOOLS = 64
"""The number of sets of tools whose JSON is kept."""


class OpenAIChat(ModelClient):
    """One model of a server that speaks chat completions.

    `provider` is the vendor that stored messages name. `is_strict`: tools may be declared as strict.
    """

    def __init__(self, http: ModelHttp, address: ModelAddress, *, provider: str, is_strict: bool) -> None:
        self._http = http
        self._address = address
        self._provider = provider
        self._is_strict = is_strict

    async def ask(self, query: ModelQuery) -> AsyncGenerator[str | ChatMessage, None]:
        """Yield the answer as the port specifies."""
        address = self._address
        deadline = Deadline(address.model, address.seconds)
        decoder = ChatReply(address.model, provider=self._provider, url=address.url, error_of=stream_error)
        async with (
            self._http.post(address, self._body(query), deadline) as response,
            aclosing(read_reply(response, decoder, deadline, address.model)) as reply,
        ):
            async for item in reply:
                yield item

    def _body(self, query: ModelQuery) -> str:
        body: dict[str, Any] = {
            "model": self._address.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tools = ""
        if query.output_format:
            body["response_format"] = _response_format(query.output_format)
        if query.tools:
            body["tool_choice"] = "required" if query.requires_call else "auto"
            tools = f',"tools":{_TOOLS[self._is_strict].encode(query.tools)}'
        messages = ",".join(filter(None, _encoded(query, self._address.url)))
        return f'{to_json(body)[:-1]}{tools},"messages":[{messages}]}}'


def _response_format(output: OutputFormat) -> dict[str, Any]:
    """Return a format as chat completions has it ("Structured model outputs")."""
    if output.schema is None:
        return {"type": "json_object"}
    found: dict[str, Any] = {"name": output.name, "schema": output.schema, "strict": output.is_strict}
    if output.description:
        found["description"] = output.description
    return {"type": "json_schema", "json_schema": found}


_FORM = "chat completions"
"""The name of earlier turns' encoding, so that a long conversation is not encoded for each request."""


def _encoded(query: ModelQuery, url: str) -> Iterator[str]:
    """Yield a conversation as JSON, without brackets; reasoning goes back within its turn only."""
    if query.instructions:
        yield to_json({"role": "system", "content": query.instructions})
    messages, known = query.messages, sum(len(one.messages) for one in query.earlier)
    turn = next((place for place in reversed(range(len(messages))) if stored.is_prompt(messages[place])), 0)
    if turn >= known:  # else an earlier turn continues
        yield from map(_encoded_turn, query.earlier)
        messages, turn = messages[known:], turn - known
    yield _joined(_messages(messages, turn, url))


def _encoded_turn(turn: EarlierTurn) -> str:
    encoded = turn.encoded.get(_FORM)
    if encoded is None:
        encoded = turn.encoded[_FORM] = _joined(_messages(turn.messages, len(turn.messages), ""))
    return encoded


def _joined(messages: Iterable[dict[str, Any]]) -> str:
    return ",".join(map(to_json, messages))


def _messages(messages: Sequence[ChatMessage], turn: int, url: str) -> Iterator[dict[str, Any]]:
    """Yield messages as chat completions has them, with the reasoning of those after the place `turn`."""
    for place, message in enumerate(messages):
        if message["kind"] == "request":
            for part in message["parts"]:
                yield from _request_part(part)
        elif found := _response(message, reasons=place > turn and message.get("provider_url") == url):
            yield found


def _request_part(part: ChatPart) -> Iterator[dict[str, Any]]:
    kind = part["part_kind"]
    if stored.is_result(part):
        content = stored.content_text(part)
        yield {"role": "tool", "tool_call_id": part["tool_call_id"], "content": content}
    elif kind == "user-prompt":
        yield {"role": "user", "content": _prompt(part["content"])}
    elif kind == "retry-prompt":
        yield {"role": "user", "content": stored.content_text(part)}
    elif kind in {"retry-feedback", "system-prompt"}:
        yield {"role": "system", "content": stored.content_text(part)}


def _prompt(content: str | Sequence[Any]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [_prompt_item(item) for item in content if isinstance(item, str) or stored.is_image(item)]


def _prompt_item(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    return {"type": "image_url", "image_url": {"url": f"data:{item['media_type']};base64,{item['data']}"}}


def _response(message: ChatMessage, *, reasons: bool) -> dict[str, Any] | None:
    """Return a response, or None if nothing of it can be sent."""
    text, calls = stored.response_text(message), stored.calls_of(message)
    if not text and not calls:
        return None
    found: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        found["tool_calls"] = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {"name": call["tool_name"], "arguments": stored.valid_arguments_text(call)},
            }
            for call in calls
        ]
    for part in message["parts"] if reasons else ():
        field = part.get("id")
        if part["part_kind"] == "thinking" and field in REASONING_FIELDS:
            found[field] = found.get(field, "") + part["content"]
    return found


def _tool(spec: ToolSpec, *, is_strict: bool) -> dict[str, Any]:
    schema = {"properties": {}, **spec.schema}
    function: dict[str, Any] = {"name": spec.name, "description": spec.description, "parameters": schema}
    if schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
        if is_strict and _is_strict_schema(schema):
            function["strict"] = True
    return {"type": "function", "function": function}


class _ToolEncoder:
    """Encodes the tools of requests as JSON, and keeps the result: an agent's tools hardly ever change."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._kept: OrderedDict[tuple[str, ...], tuple[Sequence[ToolSpec], str]] = OrderedDict()

    def encode(self, tools: Sequence[ToolSpec]) -> str:
        """Return the JSON array of the tools."""
        names = tuple([tool.name for tool in tools])
        known, encoded = self._kept.get(names, ((), ""))
        if known != tools:
            encoded = to_json([_tool(tool, is_strict=self._is_strict) for tool in tools])
            self._kept[names] = tools, encoded
            if len(self._kept) > MAX_ENCODED_TOOLS:
                self._kept.popitem(last=False)
        return encoded


_TOOLS = {is_strict: _ToolEncoder(is_strict=is_strict) for is_strict in (False, True)}


def _is_strict_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether strict mode accepts a schema of flat properties: all must be required."""
    required, properties = schema.get("required", ()), schema["properties"]
    return (
        bool(properties)
        and not schema["additionalProperties"]
        and set(required) == set(properties)
        and all(one.keys() <= {"type", "description", "enum"} for one in properties.values())
    )


def http_error(model: str, status: int, body: str, retry_after: float | None) -> ModelCallError:
    """Return the error of a response with an error status."""
    refusal = read_refusal(body)
    return _kind(status, refusal)(model, refusal.message, status=status, body=body, retry_after=retry_after)


def stream_error(model: str, error: object) -> ModelCallError:
    """Return the error that a server reports within a stream, after its status 200."""
    refusal = refusal_of(error)
    named = f"{refusal.code} {refusal.type}"
    status = int(refusal.code) if refusal.code.isdigit() else 429 if _LIMITED.search(named) else 500
    return _kind(status, refusal)(model, refusal.message, status=status, body=refusal.message)


def _kind(status: int, refusal: Refusal) -> type[ModelCallError]:
    for name in (refusal.code, refusal.type):
        if name in _BY_CODE:
            return _BY_CODE[name]
    if status != HTTPStatus.TOO_MANY_REQUESTS and says_too_long(refusal.message):
        return ModelContextExceeded
    return kind_of_status(status)
