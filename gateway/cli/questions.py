"""Questions to the person at the terminal; Ctrl-C ends the command at once.

`typer.prompt` and `typer.confirm` block the event loop, which then sees the first Ctrl-C too late.
"""

from __future__ import annotations

import asyncio
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gateway.cli.errors import CommandFailed, UsageError
from gateway.cli.printable import clean
from gateway.cli.terminal.stdin_lines import stdin_lines

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


async def confirm_deletion(name: str, consequence: str, *, yes: bool, scripts_need_yes: bool = True) -> None:
    """Ask before something is deleted, unless `yes`; raises CommandFailed if it is not wanted.

    Where there is no terminal to ask at, raises UsageError with the consequence, if `scripts_need_yes`.
    """
    if yes or (not scripts_need_yes and not sys.stdin.isatty()):
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{consequence}: pass --yes")
    typer.echo(f"Delete {clean(name)}? {consequence[0].upper()}{consequence[1:]}. [y/N]: ", nl=False)
    answer = await _read_line()
    if answer is None:
        typer.echo()
    if answer is None or answer.strip().lower() not in {"y", "yes"}:
        raise CommandFailed("nothing was deleted")


async def ask_secret(question: str) -> str:
    """Return what a person types without an echo; raises CommandFailed if that is nothing.

    Call it only if standard input is a terminal.
    """
    with _without_echo(sys.stdin.fileno()):
        typer.echo(f"{question}: ", nl=False)
        answer = await _read_line()
    typer.echo()
    if not (answer or "").strip():
        raise CommandFailed("no secret was typed")
    return str(answer).strip()


async def _read_line() -> str | None:
    """Return the next line of standard input; None at its end."""
    first: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def take(line: str | None) -> None:
        if not first.done():
            first.set_result(line)

    with stdin_lines(sys.stdin.fileno(), take):
        return await first


@contextmanager
def _without_echo(terminal: int) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    hidden = [*before]
    hidden[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
