"""Decode a streamed message of Anthropic's API into text and a stored response."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import ModelCallError, ModelUnreachable
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.reply import ReplyDecoder

REDACTED = "redacted_thinking"
"""The type of blocks of encrypted thinking, and the id of the parts in which they are stored."""

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}
_PIECES = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}


class MessagesReply(ReplyDecoder):
    """Collects the events of one message."""

    def __init__(
        self, model: str, *, provider: str, url: str, error_of: Callable[[str, object], ModelCallError]
    ) -> None:
        self.is_complete = False
        self._model = model
        self._error_of = error_of
        self._provider = provider
        self._message = stored.response(model, provider=provider, url=url)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self._usage: dict[str, int] = {}

    def add(self, data: bytes) -> str:
        """Read an event and return the text that it adds."""
        event = self._parse(data)
        match event.get("type"):
            case "content_block_delta":
                return self._add_delta(event["index"], event["delta"])
            case "content_block_start":
                return self._start_block(event["index"], event["content_block"])
            case "message_start":
                self._start(event["message"])
            case "message_delta":
                reason = event["delta"].get("stop_reason")
                self._message["finish_reason"] = _FINISH_REASONS.get(reason or "", "stop")
                self._count(event.get("usage"))
            case "message_stop":
                self.is_complete = True
            case "error":
                raise self._error_of(self._model, event.get("error"))
        return ""

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ModelUnreachable(self._model, "it sent an event that is not JSON") from error
        if not isinstance(event, dict):
            raise ModelUnreachable(self._model, "it sent an event that is not a JSON object")
        return event

    def _start(self, message: dict[str, Any]) -> None:
        self._message["model_name"] = message.get("model") or self._model
        self._message["provider_response_id"] = message.get("id")
        self._count(message.get("usage"))

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Take over numbers, which are totals of the message so far."""
        self._usage |= {name: value for name, value in (usage or {}).items() if isinstance(value, int)}

    def _start_block(self, index: int, block: dict[str, Any]) -> str:
        self._blocks[index], self._pieces[index] = dict(block), []
        return self._add_piece(index, block.get("text") or "") if block.get("type") == "text" else ""

    def _add_delta(self, index: int, delta: dict[str, Any]) -> str:
        kind = str(delta.get("type"))
        if kind == "signature_delta":
            self._blocks[index]["signature"] = delta.get("signature")
            return ""
        text = self._add_piece(index, str(delta.get(_PIECES.get(kind, ""), "")))
        return text if kind == "text_delta" else ""

    def _add_piece(self, index: int, piece: str) -> str:
        self._pieces[index].append(piece)
        return piece

    def response(self) -> ChatMessage:
        """Return the response; raises ModelUnreachable if the stream ended before the message did."""
        if not self.is_complete and "finish_reason" not in self._message:
            raise ModelUnreachable(self._model, "its answer broke off")
        self._message["parts"] = [
            part for index, block in sorted(self._blocks.items()) for part in self._parts(index, block)
        ]
        if not stored.response_text(self._message).strip():
            self._message["parts"] = [one for one in self._message["parts"] if one["part_kind"] != "text"]
        read, written = (self._usage.get(f"cache_{name}_input_tokens", 0) for name in ("read", "creation"))
        self._message["usage"] = stored.usage_numbers(
            {
                "input_tokens": self._usage.get("input_tokens", 0) + read + written,
                "output_tokens": self._usage.get("output_tokens"),
                "cache_read_tokens": read,
                "cache_write_tokens": written,
            }
        )
        return self._message

    def _parts(self, index: int, block: dict[str, Any]) -> list[ChatPart]:
        """Return a block as a stored part; nothing for blocks that this gateway does not request."""
        text, kind = "".join(self._pieces[index]), block.get("type")
        if kind == "text":
            return [{"content": text, "part_kind": "text"}] if text else []
        if kind == "tool_use":
            args = text or json.dumps(block.get("input") or {})
            return [
                {
                    "tool_name": str(block["name"]),
                    "args": args,
                    "tool_call_id": str(block["id"]),
                    "part_kind": "tool-call",
                }
            ]
        if kind not in {"thinking", REDACTED}:
            return []
        return [
            {
                "content": text,
                "part_kind": "thinking",
                "id": REDACTED if kind == REDACTED else None,
                "signature": block.get("data") if kind == REDACTED else block.get("signature"),
                "provider_name": self._provider,
            }
        ]
