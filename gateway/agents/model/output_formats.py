"""The form of an answer: what the instructions say about it, and the check of what it answers.

Vendors enforce forms differently or not at all, so every answer is checked here. Schemas come from clients:
patterns in them are not applied, and the work is limited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import ModelCallError, ModelRequestRefused
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.model.schema_check import find_mismatch
from gateway.agents.port import CUT_NOTICES, AgentEvent, Delta, Finished, MessageCompleted, OutputFormat

NO_OUTPUT = "Please return text or call a tool."
_OBJECT = "Answer with one JSON object and nothing else: no other text, no code fence."
_SCHEMA = "Answer with JSON that matches this JSON schema and nothing else: no other text, no code fence."
_REFUSAL_WORDS = (
    *("response_format", "json_schema", "json_object"),
    *("output_config", "output_format", "output format"),
    *("schema", "response mime type"),
)
"""What servers name when they refuse a format: chat completions, Anthropic, and Google, in this order."""
_FENCE = "```"


def add_format(instructions: str, output: OutputFormat | None) -> str:
    """Return instructions with the form of the answer."""
    if output is None:
        return instructions
    form = _OBJECT
    if output.schema is not None:
        form = f"{_SCHEMA}\n{json.dumps(output.schema, ensure_ascii=False)}"
        form = f"{output.description}\n{form}" if output.description else form
    return f"{instructions}\n\n{form}" if instructions else form


def shown_events(event: AgentEvent, output: OutputFormat | None) -> Iterator[AgentEvent]:
    """Yield the events of a turn; with a form, its only message is the answer, which was checked."""
    if output is None:
        yield event
    elif isinstance(event, Finished):
        yield MessageCompleted(text=event.output)
        yield event
    elif not isinstance(event, Delta | MessageCompleted):
        yield event


def is_refused(error: ModelCallError) -> bool:
    """Return whether a server refused the form: some know none, or only one kind, or not all of a schema."""
    return isinstance(error, ModelRequestRefused) and any(
        word in error.detail.lower() for word in _REFUSAL_WORDS
    )


def find_fault(response: ChatMessage, output: OutputFormat | None) -> str | None:
    """Return what to tell the model about a response without calls; None if it is an answer.

    A text that was cut is an answer too: its client learns from the finish reason that it is not complete.
    """
    text = stored.response_text(response)
    if not text:
        return NO_OUTPUT
    if output is None or response.get("finish_reason") in CUT_NOTICES:
        return None
    try:
        value = json.loads(bare_json(text, output) or "", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"The answer is not JSON: {error}."
    if output.schema is None:
        return None if isinstance(value, Mapping) else "The answer is not a JSON object."
    mismatch = find_mismatch(output.schema, value)
    return f"The answer does not match the JSON schema: {mismatch}." if mismatch else None


def bare_json(text: str | None, output: OutputFormat | None) -> str | None:
    """Return an answer without the code fence that models like to put around JSON."""
    if text is None or output is None:
        return text
    bare = text.strip()
    first, _, rest = bare.partition("\n")
    if first.startswith(_FENCE) and rest.endswith(_FENCE):
        return rest.removesuffix(_FENCE).strip()
    return bare


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
