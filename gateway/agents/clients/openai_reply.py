"""Decode a streamed chat completion into text and a stored response."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import ModelCallError, ModelUnreachable
from gateway.agents.clients.messages import ChatMessage, ChatPart, ResponseTokens
from gateway.agents.clients.reply import ReplyDecoder
from gateway.agents.clients.thinking import ThinkingFilter

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Fields in which compatible servers send a model's reasoning."""

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
}


@dataclass(kw_only=True)
class _StreamedCall:
    """A tool call whose arguments arrive in pieces."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatReply(ReplyDecoder):
    """Collects the chunks of one completion."""

    def __init__(
        self, model: str, *, provider: str, url: str, error_of: Callable[[str, object], ModelCallError]
    ) -> None:
        self.is_complete = False
        self._model = model
        self._error_of = error_of
        self._message = stored.response(model, provider=provider, url=url)
        self._usage: ResponseTokens = {}
        self._text: list[str] = []
        self._refuses = False
        self._reasoning: dict[str, list[str]] = {}
        self._filter = ThinkingFilter()
        self._calls: dict[object, _StreamedCall] = {}
        self._last_key: object = None

    def add(self, data: bytes) -> str:
        """Read a chunk and return the text that it adds."""
        if data.strip() == b"[DONE]":
            self.is_complete = True
            return ""
        chunk = self._parse(data)
        if error := chunk.get("error") or (chunk.get("object") == "error" and chunk):
            raise self._error_of(self._model, error)
        if isinstance(usage := chunk.get("usage"), dict) and usage:
            self._usage = _usage(usage)
        if chunk.get("model"):
            self._message["model_name"] = str(chunk["model"])
        if chunk.get("id"):
            self._message["provider_response_id"] = str(chunk["id"])
        choices = chunk.get("choices")
        return self._add_choice(choices[0]) if choices else ""

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ModelUnreachable(self._model, "it sent an event that is not JSON") from error
        if not isinstance(chunk, dict):
            raise ModelUnreachable(self._model, "it sent an event that is not a JSON object")
        return chunk

    def _add_choice(self, choice: dict[str, Any]) -> str:
        if reason := choice.get("finish_reason"):
            self._message["finish_reason"] = _FINISH_REASONS.get(reason, "stop")
        delta = choice.get("delta") or choice.get("message") or {}
        for name in REASONING_FIELDS:
            if isinstance(found := delta.get(name), str) and found:
                self._reasoning.setdefault(name, []).append(found)
                self._filter.skip_leading_space()
                break
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        content = _content_text(delta.get("content"))
        if not content and (content := _content_text(delta.get("refusal"))):
            self._refuses = True
        text = self._filter.feed(content) if content else ""
        if text:
            self._text.append(text)
        return text

    def _add_call(self, delta: dict[str, Any]) -> None:
        """Add a piece of a call; servers that give no index, or one index to all calls, are understood."""
        function, identity = delta.get("function") or {}, delta.get("id") or ""
        key = delta.get("index", identity or self._last_key)
        call = self._calls.get(key)
        if call is not None and identity and call.id and identity != call.id:
            key = identity
            call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _StreamedCall()
        self._last_key = key
        call.id = call.id or identity
        call.name = call.name or function.get("name") or ""
        arguments = function.get("arguments")
        if arguments:
            call.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def response(self) -> ChatMessage:
        """Return the response; raises ModelUnreachable if the stream ended before the completion did."""
        if rest := self._filter.close():
            self._text.append(rest)
        if not self.is_complete and "finish_reason" not in self._message:
            has_begun = self._text or self._calls or self._reasoning
            broken = "its answer broke off" if has_begun else "its answer ended before it began"
            raise ModelUnreachable(self._model, broken)
        self._message.setdefault("finish_reason", "stop")
        self._message["usage"] = self._usage
        self._message["parts"] = [
            *self._thinking(),
            *self._text_part(),
            *map(_call_part, self._calls.values()),
        ]
        return self._message

    def _thinking(self) -> list[ChatPart]:
        found = {name: "".join(pieces) for name, pieces in self._reasoning.items()}
        found["content"] = self._filter.thinking
        provider = self._message.get("provider_name")
        return [
            {"part_kind": "thinking", "content": text, "id": name, "provider_name": provider}
            for name, text in found.items()
            if text
        ]

    def _text_part(self) -> list[ChatPart]:
        text = "".join(self._text)
        part: ChatPart = {"content": text, "part_kind": "text"}
        if self._refuses:
            part["provider_details"] = {stored.REFUSAL: True}
        return [part] if text.strip() else []


def _content_text(content: object) -> str:
    """Return the text of a delta's content, which some servers send as a list of parts."""
    if isinstance(content, list):
        return "".join(str(one.get("text") or "") for one in content if isinstance(one, dict))
    return content if isinstance(content, str) else ""


def _call_part(call: _StreamedCall) -> ChatPart:
    return {
        "tool_name": call.name,
        "args": "".join(call.arguments) or "{}",
        "tool_call_id": call.id,
        "part_kind": "tool-call",
    }


def _usage(found: dict[str, Any]) -> ResponseTokens:
    prompt, completion = (_details(found, f"{side}_tokens_details") for side in ("prompt", "completion"))
    return stored.usage_numbers(
        {
            "input_tokens": found.get("prompt_tokens"),
            "output_tokens": found.get("completion_tokens"),
            "cache_read_tokens": prompt.get("cached_tokens"),
            "output_reasoning_tokens": completion.get("reasoning_tokens"),
        }
    )


def _details(usage: dict[str, Any], name: str) -> dict[str, Any]:
    found = usage.get(name)
    return found if isinstance(found, dict) else {}
