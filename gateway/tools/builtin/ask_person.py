"""The tool ask_person: ask the people of the conversation something, and wait for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.conversations.questions import TOOL, InvalidQuestion, parse_question
from gateway.tools.tool import Tool, ToolContext, fixed

DESCRIPTION = (
    "Ask the people of this conversation something that only they can decide, and wait for the answer, which "
    "may take days. Give `choices` if the answer is one of a few texts, or `form` for several values: an "
    "object that gives the name of each field a short text saying what it means. Without both, the answer "
    "is any text."
)


_SPEC = ToolSpec(
    name=TOOL,
    description=DESCRIPTION,
    schema={
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "string"}},
            "form": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)


def _objection(_context: ToolContext, args: Mapping[str, Any]) -> str | None:
    try:
        parse_question(args)
    except InvalidQuestion as error:
        return f"wrong arguments: {error}"
    return None


async def _run(context: ToolContext, _args: Mapping[str, Any], _key: str) -> ToolResult:
    if context.answer is None:
        return ToolResult(ok=False, content="this question was not answered")
    return ToolResult(ok=True, content=context.answer, detail={"answer": context.answer})


ask_person = Tool(
    spec=fixed(_SPEC),
    needs_approval=lambda _config: True,
    run=_run,
    idempotent=True,
    objection=_objection,
    asks_person=True,
    uses_workspace=False,
)
