"""Prompts of MCP servers as commands: a message `/SERVER_PROMPT arguments` becomes the prompt, filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.mcp.reads import ReadableServer
from gateway.tools.mcp.results import render_input
from gateway.tools.mcp.server import McpUnavailable
from gateway.tools.tool import ToolContext

MAX_PAGES = 5
MAX_PROMPTS = 100
MAX_ARGUMENTS = 20
MAX_PROMPT = 100_000
"""Characters of a prompt; the rest is cut off."""

_COMMAND = re.compile(r"/([A-Za-z0-9_-]{1,200})(?:@\w+)?(?:\s+(.*))?\Z", re.DOTALL)
_UNUSABLE = re.compile(r"[^a-z0-9]+")


class WrongArguments(ValueError):
    """The arguments that a person typed do not fit the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCommand:
    """A prompt, and the command that uses it; `required` are arguments that it needs."""

    command: str
    prompt: str
    arguments: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()

    @property
    def usage(self) -> str:
        """The command with its arguments, as people type it."""
        shown = (name if name in self.required else f"[{name}]" for name in self.arguments)
        return " ".join([f"/{self.command}", *shown])

    def parse(self, text: str) -> dict[str, str]:
        """Return the arguments in a text: `name=value`, or values in order; raises WrongArguments."""
        words = _words(text)
        pairs = [word.partition("=") for word in words]
        if words and all(sign and name in self.arguments for name, sign, _value in pairs):
            found = {name: value for name, _sign, value in pairs}
        else:
            found = dict(zip(self.arguments, self._values(words), strict=False))
        missing = [name for name in self.arguments if name in self.required and not found.get(name)]
        if missing:
            raise WrongArguments(f"{missing[0]} is missing; use {self.usage}")
        return found

    def _values(self, words: Sequence[str]) -> Sequence[str]:
        """Return a value for each argument; the last one gets all that is left."""
        if words and not self.arguments:
            raise WrongArguments(f"it takes no arguments; use {self.usage}")
        last = len(self.arguments) - 1
        return [*words[:last], " ".join(words[last:])] if len(words) > last + 1 else words


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its end, as in "don't"
        return text.split()


def command_name(server: str, prompt: str) -> str:
    """Return the command of a prompt: all platforms accept its letters."""
    return _UNUSABLE.sub("_", f"{server}_{prompt}".lower()).strip("_")


async def list_prompts(context: ToolContext, name: str, server: ReadableServer) -> list[PromptCommand]:
    """Return the prompts of a server; raises McpUnavailable."""
    found: dict[str, PromptCommand] = {}
    params: Mapping[str, Any] = {}
    for _page in range(MAX_PAGES):
        page = await server.server.read(context, "prompts/list", params)
        for one in _parse(name, page.get("prompts")):
            found.setdefault(one.command, one)
        following = page.get("nextCursor")
        if not isinstance(following, str) or len(found) >= MAX_PROMPTS:
            break
        params = {"cursor": following}
    return list(found.values())[:MAX_PROMPTS]


def _parse(server: str, listed: object) -> Iterator[PromptCommand]:
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            continue
        given = one.get("arguments")
        named = [
            argument
            for argument in (given if isinstance(given, list) else ())
            if isinstance(argument, Mapping) and isinstance(argument.get("name"), str)
        ][:MAX_ARGUMENTS]
        yield PromptCommand(
            command=command_name(server, one["name"]),
            prompt=one["name"],
            arguments=tuple(argument["name"][:100] for argument in named),
            required=frozenset(
                argument["name"][:100] for argument in named if argument.get("required") is True
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedCommand:
    """A message that may be a command."""

    name: str
    rest: str

    @classmethod
    def parse(cls, text: str) -> TypedCommand | None:
        """Return the command in a message, or None."""
        found = _COMMAND.match(text.strip())
        if found is None:
            return None
        return cls(name=_UNUSABLE.sub("_", found[1].lower()).strip("_"), rest=found[2] or "")

    def may_be_of(self, server: str) -> bool:
        """Return whether a prompt of this server can have the name."""
        return self.name.startswith(f"{command_name(server, '')}_")


async def fill_in(
    context: ToolContext, typed: TypedCommand, known: PromptCommand, server: ReadableServer
) -> str:
    """Return the prompt of a command as the agent gets it; raises WrongArguments, McpUnavailable."""
    params = {"name": known.prompt, "arguments": known.parse(typed.rest)}
    text = render_input(await server.server.read(context, "prompts/get", params))
    if not text.strip():
        raise McpUnavailable("the prompt is empty")
    return text[:MAX_PROMPT]
