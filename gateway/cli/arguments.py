"""Arguments KEY=VALUE of commands, and the confirmation of a deletion."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from gateway.cli.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def confirm_deletion(question: str, consequence: str, *, yes: bool) -> None:
    """Ask before a deletion, unless `yes`; raises Abort if it is not wanted.

    Raises UsageError with the consequence where there is no terminal to ask at.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{consequence}: pass --yes")
    typer.confirm(question, abort=True)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse KEY=VALUE arguments; a value that is JSON is parsed as JSON."""
    found: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{key!r} is not KEY=VALUE")
        found[key.strip()] = _parse_value(value)
    return found


def _parse_value(text: str) -> Any:
    if text[:1] in {"[", "{"} or text in {"true", "false", "null"}:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{text!r} starts like JSON but is invalid: {error}") from error
    return text
