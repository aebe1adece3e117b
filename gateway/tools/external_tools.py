"""The further tools of one turn, beside the built-in ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

from gateway.store.turns.turns import Turn
from gateway.tools.hooks.turn_hooks import TurnHooks
from gateway.tools.tool import Tool, ToolContext

MAX_NAME = 64
"""Characters of a tool's name; models accept no more."""

_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTools:
    """The further tools of a turn by name, notes for the model about those that are missing, and hooks."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hooks: TurnHooks = field(default_factory=TurnHooks)
    prompt: str | None = None
    """The prompt of an MCP server that the turn's message names; it replaces the message."""

    def with_prompt(self, of: Turn, render: Callable[[Turn], str]) -> Callable[[Turn], str]:
        """Return the function that renders a turn's input, with the prompt in place of this turn's."""
        prompt = self.prompt
        if prompt is None:
            return render
        return lambda turn: render(replace(turn, input=prompt) if turn.id == of.id else turn)

    def add_notes(self, instructions: str) -> str:
        """Return an agent's instructions with the notes."""
        return "\n\n".join([instructions, *self.notes]) if self.notes else instructions


OpenExternalTools = Callable[[ToolContext], AbstractAsyncContextManager[ExternalTools]]
"""Open what a turn's further tools need; it is closed when the turn's attempt ends."""


def no_external_tools(_context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
    """Open nothing."""
    return nullcontext(ExternalTools())


def tool_name(text: str) -> str:
    """Return a name that models accept; one that had to be changed ends with a digest of the original."""
    name = _UNUSABLE.sub("_", text)
    if name == text and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME - len(digest) - 1]}_{digest}"
