"""Messages of a conversation with a model, in their stored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from gateway.agents.clients.messages import ChatMessage, ChatPart, request, tool_return, user_prompt

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
exchanges = st.tuples(texts, texts, st.dictionaries(texts, st.none() | st.integers() | texts, max_size=3))
"""Pairs of a question and an answer, with the arguments of the call between them."""


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


def conversation_of(exchanges: list[tuple[str, str, dict[str, object]]]) -> list[ChatMessage]:
    """Return messages of turns that each called a tool once."""
    messages: list[ChatMessage] = []
    for number, (asked, answered, args) in enumerate(exchanges):
        call = tool_call(args, f"call_{number}")
        question = request([user_prompt(asked)])
        question["instructions"] = "Be brief."
        messages += [question, response(call), request([tool_return(call, answered)]), response(answered)]
    return messages
