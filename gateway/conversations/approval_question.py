"""Render the question that a person is asked about a tool call (pure)."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.conversations.text_change import TextChange, render_diff

TEXT_ARGUMENTS = frozenset({"content", "old_text", "new_text"})
"""Arguments that a diff shows."""

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_PLAIN_WHITESPACE = frozenset(" \t\n")
_ESCAPE_OPEN = "\N{MATHEMATICAL LEFT ANGLE BRACKET}"
_ESCAPE_CLOSE = "\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
_VARIATION_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTarget:
    """Where a tool call would run; None: the name is unknown or there is none.

    `address` is what a tool sends a request to, from the gateway. `definition` is a hash of what the author
    of a tool states about it; it is not shown.
    """

    workspace: str | None = None
    sandbox: str | None = None
    provider: str | None = None
    network: str | None = None
    address: str | None = None
    definition: str | None = None


def render_question(
    tool: str, args: Mapping[str, Any], target: CallTarget, change: TextChange | None = None
) -> str:
    """Return the whole call: tool, workspace, sandbox, network and every argument.

    With a `change` its diff stands for the arguments that hold the texts, with the hash of all arguments.
    Two different calls have different questions. Control, bidirectional, zero-width and other invisible
    characters are shown by their code points.
    """
    shown = args if change is None else {name: args[name] for name in args if name not in TEXT_ARGUMENTS}
    sandbox = f"{_value(target.sandbox)}, provider {_value(target.provider)}"
    return "\n".join(
        [
            f"tool: {_value(tool)}",
            f"workspace: {_value(target.workspace)}",
            f"sandbox: {sandbox}",
            f"network: {_value(target.network)}",
            *([f"address: {_value(target.address)}"] if target.address is not None else []),
            *_render_arguments(shown),
            *(_render_change(change, args) if change is not None else ()),
        ]
    )


def render_call(tool: str, args: Mapping[str, Any]) -> str:
    """Return a call on as few lines as possible: a bash command as it is, any other call as JSON."""
    if tool == "bash" and isinstance(args.get("command"), str) and args.keys() <= {"command", "background"}:
        return show_invisible(f"{args['command']} &" if args.get("background") else args["command"])
    return show_invisible(f"{tool} {_json(args)}")


def show_invisible(text: str) -> str:
    """Replace every invisible character by its code point in brackets; different texts stay different."""
    return "".join(_show(letter) for letter in text)


def _show(letter: str) -> str:
    return f"{_ESCAPE_OPEN}U+{ord(letter):04X}{_ESCAPE_CLOSE}" if _is_hidden(letter) else letter


def _is_hidden(letter: str) -> bool:
    if letter in _PLAIN_WHITESPACE:
        return False
    if letter == _ESCAPE_OPEN or letter in _INVISIBLE_LETTERS:
        return True
    return unicodedata.category(letter) in _INVISIBLE_CATEGORIES or any(
        ord(letter) in selectors for selectors in _VARIATION_SELECTORS
    )


def _render_arguments(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of all arguments; each line of a text is indented, so that it cannot imitate others."""
    for name in sorted(args):
        value = args[name]
        if isinstance(value, str):
            yield f"{_value(name)}:"
            yield from (f"    {show_invisible(line)}" for line in value.split("\n"))
        else:
            yield f"{_value(name)}: {show_invisible(_json(value))}"


def _render_change(change: TextChange, args: Mapping[str, Any]) -> Iterator[str]:
    """Yield the diff, and a hash by which calls differ that change different files in the same way."""
    yield f"changes to the present {change.what}:"
    for line in render_diff(change):
        yield f"    {show_invisible(line)}"
    exact = hashlib.sha256(_json(args).encode("utf-8", "surrogatepass")).hexdigest()
    yield f"all arguments: sha256 {exact}"


def _value(text: str | None) -> str:
    return "none" if text is None else show_invisible(json.dumps(text, ensure_ascii=False))


def _json(value: Any) -> str:
    return json.dumps(
        dict(value) if isinstance(value, Mapping) else value, sort_keys=True, ensure_ascii=False
    )
