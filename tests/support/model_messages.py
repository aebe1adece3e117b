"""Messages of a conversation with a model, in their stored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.clients.messages import ChatMessage, ChatPart


def tool_call(args: Mapping[str, Any] | str, identity: str, name: str = "bash") -> ChatPart:
    """Return a call of a tool."""
    given = args if isinstance(args, str) else dict(args)
    return {"part_kind": "tool-call", "tool_name": name, "args": given, "tool_call_id": identity}


def response(*parts: ChatPart | str) -> ChatMessage:
    """Return a response of texts and calls."""
    found: list[ChatPart] = [
        {"part_kind": "text", "content": part} if isinstance(part, str) else part for part in parts
    ]
    return {"kind": "response", "parts": found}
