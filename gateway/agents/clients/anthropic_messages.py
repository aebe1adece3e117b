"""Anthropic's Messages API ("Create a Message", "Streaming messages", "Errors")."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from gateway.agents.clients import messages as stored
from gateway.agents.clients.anthropic_reply import REDACTED, MessagesReply
from gateway.agents.clients.enforced_schema import enforced_schema
from gateway.agents.clients.error_responses import (
    Refusal,
    kind_of_status,
    read_refusal,
    refusal_of,
    says_too_long,
)
from gateway.agents.clients.errors import ModelCallError, ModelContextExceeded, ModelQuotaUsedUp
from gateway.agents.clients.http import ModelAddress, ModelHttp, to_json
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.port import ModelClient, ModelQuery
from gateway.agents.clients.reply import Deadline, read_reply

VERSION = "2023-06-01"
PROVIDER = "anthropic"

_LARGEST_OUTPUT = (
    (re.compile(r"claude-(3|4-)|claude-(opus|sonnet)-4(-[012@]|@|$)"), 4096),
    (re.compile(r"claude-(haiku|opus|sonnet)-4-5"), 64_000),
    (re.compile(r"claude-(opus-4-[678]|sonnet-4-6|fable-5|mythos-5|opus-5|sonnet-5|haiku-5)"), 128_000),
)
"""The output limits of models; the oldest refuse an input that does not leave room for the limit."""

_DEFAULT_OUTPUT = 16_384
_NO_CREDIT = re.compile("credit balance", re.IGNORECASE)
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}


class AnthropicMessages(ModelClient):
    """One of Anthropic's models."""

    def __init__(self, http: ModelHttp, address: ModelAddress) -> None:
        self._http = http
        self._address = address

    async def ask(self, query: ModelQuery) -> AsyncGenerator[str | ChatMessage, None]:
        """Yield the answer as the port specifies."""
        address = self._address
        deadline = Deadline(address.model, address.seconds)
        decoder = MessagesReply(address.model, provider=PROVIDER, url=address.url, error_of=stream_error)
        async with (
            self._http.post(address, to_json(request_body(address.model, query)), deadline) as response,
            aclosing(read_reply(response, decoder, deadline, address.model)) as reply,
        ):
            async for item in reply:
                yield item


def request_body(model: str, query: ModelQuery) -> dict[str, Any]:
    """Return the body of a request."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": largest_output(model),
        "stream": True,
        "messages": _messages(query),
    }
    if query.instructions:
        body["system"] = [{"type": "text", "text": query.instructions}]
    if query.output_format and (schema := enforced_schema(query.output_format.schema)):
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if query.tools:
        body["tool_choice"] = {"type": "any" if query.requires_call else "auto"}
        body["tools"] = [
            {"name": one.name, "description": one.description, "input_schema": dict(one.schema)}
            for one in query.tools
        ]
    _mark_cached_prefixes(body)
    return body


def _mark_cached_prefixes(body: dict[str, Any]) -> None:
    """Ask the API to cache the tools and instructions, and the conversation up to the last two user messages.

    The next request repeats these prefixes, and reads them for a tenth of the price. Source: "Prompt caching"
    of Anthropic's documentation, which allows four marks, and none on a block of thinking.
    """
    fixed = (body.get("system") or body.get("tools") or [])[-1:]
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    for block in [*fixed, *(content[-1] for content in said[-2:])]:
        block["cache_control"] = {"type": "ephemeral"}


def largest_output(model: str) -> int:
    """Return the output tokens to allow, which the API requires to be stated."""
    return next((most for pattern, most in _LARGEST_OUTPUT if pattern.match(model)), _DEFAULT_OUTPUT)


def _messages(query: ModelQuery) -> list[dict[str, Any]]:
    """Return a conversation as the API has it: roles take turns, and each message is a list of blocks.

    Without `tools`, which an agent may not have any more, the API refuses blocks of calls ("Requests which
    include `tool_use` or `tool_result` blocks must define tools").
    """
    found: list[dict[str, Any]] = []
    for message in query.messages if query.tools else stored.calls_as_text(query.messages):
        role = "user" if message["kind"] == "request" else "assistant"
        blocks = [block for part in message["parts"] for block in _blocks(part)]
        if blocks and found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        elif blocks:
            found.append({"role": role, "content": blocks})
    return found


def _blocks(part: ChatPart) -> Iterator[dict[str, Any]]:
    kind = part["part_kind"]
    if stored.is_result(part):
        yield _result(part)
    elif kind == "user-prompt":
        content = part["content"]
        yield from map(_prompt_item, [content] if isinstance(content, str) else _sendable(content))
    elif kind == "tool-call":
        args = stored.valid_arguments(part)
        yield {"type": "tool_use", "id": part["tool_call_id"], "name": part["tool_name"], "input": args}
    elif kind == "thinking":
        yield from _thinking(part)
    elif kind in {"text", "retry-prompt", "retry-feedback", "system-prompt"} and part["content"]:
        yield {"type": "text", "text": stored.content_text(part)}


def _result(part: ChatPart) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "tool_result", "tool_use_id": part["tool_call_id"]}
    if text := stored.content_text(part):
        found["content"] = text
    if part.get("outcome") in {"failed", "retried"}:
        found["is_error"] = True
    return found


def _sendable(content: list[Any]) -> list[Any]:
    return [item for item in content if item and (isinstance(item, str) or stored.is_image(item))]


def _prompt_item(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item or " "}
    source = {"type": "base64", "media_type": item["media_type"], "data": item["data"]}
    return {"type": "image", "source": source}


def _thinking(part: ChatPart) -> Iterator[dict[str, Any]]:
    """Yield thinking that the vendor signed, which must come back as it was."""
    signature = part.get("signature")
    if not signature or part.get("provider_name") != PROVIDER:
        return
    if part.get("id") == REDACTED:
        yield {"type": REDACTED, "data": signature}
    else:
        yield {"type": "thinking", "thinking": part["content"], "signature": signature}


def http_error(model: str, status: int, body: str, retry_after: float | None) -> ModelCallError:
    """Return the error of a response with an error status."""
    refusal = read_refusal(body)
    return _kind(status, refusal)(model, refusal.message, status=status, body=body, retry_after=retry_after)


def stream_error(model: str, error: object) -> ModelCallError:
    """Return the error that a server reports within a stream, after its status 200."""
    refusal = refusal_of(error)
    status = _STATUS_OF_TYPE.get(refusal.type, 500)
    return _kind(status, refusal)(model, refusal.message, status=status, body=refusal.message)


def _kind(status: int, refusal: Refusal) -> type[ModelCallError]:
    if status != HTTPStatus.TOO_MANY_REQUESTS and says_too_long(refusal.message):
        return ModelContextExceeded
    if refusal.type == "billing_error" or _NO_CREDIT.search(refusal.message):
        return ModelQuotaUsedUp
    return kind_of_status(status)
