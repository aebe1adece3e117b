"""What a session writes to, and where its input comes from."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import typer

from gateway.cli.errors import print_error
from gateway.cli.terminal.stdin_lines import stdin_lines

PROMPT = "> "
TERMINAL_LINE_BYTES = 4095
"""Bytes after which a terminal that edits its own lines cuts them (termios(3), canonical mode)."""


class KeyPress(Enum):
    """The keys that end or interrupt the input."""

    INTERRUPT = "interrupt"
    END = "end"


@dataclass(frozen=True, slots=True)
class TypedLine:
    """A typed message or answer; one that was pasted may have several lines."""

    text: str


OnInput = Callable[[TypedLine | KeyPress], None]


class ChatScreen(Protocol):
    """Shows a conversation, and reads what is typed."""

    async def read(self, on_input: OnInput) -> None:
        """Pass each input to `on_input`, until the input ends or the task is cancelled."""

    def write(self, text: str) -> None:
        """Show a piece of the conversation."""

    def prompt(self) -> None:
        """Show that a message can be typed."""

    def ask(self, question: str) -> None:
        """Show a question that the next input answers."""

    def end_question(self) -> None:
        """Show that no question waits any more."""


class LineScreen:
    """Standard input by lines, and standard output: pipes, files, and terminals that edit their own lines."""

    def __init__(self, *, prompts: bool) -> None:
        self._prompts = prompts

    async def read(self, on_input: OnInput) -> None:
        """Read standard input by lines; a regular file is read immediately."""

        def on_line(line: str | None) -> None:
            if line is None:
                on_input(KeyPress.END)
            elif sys.stdin.isatty() and len(line.encode()) >= TERMINAL_LINE_BYTES:
                print_error(f"the terminal cut this line after {TERMINAL_LINE_BYTES} bytes: it was not sent")
                self.prompt()
            else:
                on_input(TypedLine(line))

        with stdin_lines(sys.stdin.fileno(), on_line):
            await asyncio.Event().wait()

    def write(self, text: str) -> None:
        """Write to standard output."""
        typer.echo(text, nl=False)

    def prompt(self) -> None:
        """Write the prompt, if a person types."""
        if self._prompts:
            typer.echo(PROMPT, nl=False)

    def ask(self, question: str) -> None:
        """Write a question where a person reads it, also while the answers go to a file."""
        typer.echo(question, nl=False, err=sys.stdin.isatty() and not sys.stdout.isatty())

    def end_question(self) -> None:
        """Do nothing: what was written stays."""
