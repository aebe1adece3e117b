"""A terminal at which a person edits the next message, below the conversation.

prompt_toolkit reads the keys. A terminal that edits lines itself cuts them after 4,095 bytes (termios(3),
canonical mode), and each line of a pasted text would be a message.
"""

from __future__ import annotations

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from gateway.cli.terminal.screens import PROMPT, KeyPress, OnInput, TypedLine

UNFINISHED_SHOWN = 500
"""Characters of a line that is still being written; when it ends, all of it is shown."""


class LineEditor:
    """Shows the conversation above the line that is edited."""

    def __init__(self) -> None:
        self._label = PROMPT
        self._unfinished = ""
        self._session: PromptSession[str] | None = None

    async def read(self, on_input: OnInput) -> None:
        """Pass each text that is sent with Enter, and the keys that interrupt and end."""
        self._session = PromptSession(
            self._message, key_bindings=_key_bindings(on_input), enable_suspend=True
        )
        with patch_stdout(raw=True):
            while True:
                try:
                    text = await self._session.prompt_async(handle_sigint=False)
                except EOFError:
                    on_input(KeyPress.END)
                    return
                on_input(TypedLine(text))

    def write(self, text: str) -> None:
        """Print whole lines above the edited one; the beginning of a line is shown until its end follows."""
        lines, newline, self._unfinished = f"{self._unfinished}{text}".rpartition("\n")
        if newline:
            typer.echo(lines)
        self._redraw()

    def prompt(self) -> None:
        """Label the edited line as a message."""
        self._show_label(PROMPT)

    def ask(self, question: str) -> None:
        """Label the edited line with a question."""
        self._show_label(question)

    def end_question(self) -> None:
        """Label the edited line as a message again."""
        self._show_label(PROMPT)

    def _show_label(self, label: str) -> None:
        self._label = label
        self._redraw()

    def _redraw(self) -> None:
        if self._session is not None:
            self._session.app.invalidate()

    def _message(self) -> FormattedText:
        is_sent = self._session is not None and self._session.app.is_done
        above = f"{self._unfinished[-UNFINISHED_SHOWN:]}\n" if self._unfinished and not is_sent else ""
        return FormattedText([("", above), ("", self._label)])


def _key_bindings(on_input: OnInput) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c")
    def interrupt(event: KeyPressEvent) -> None:
        """Clear the line; an empty one interrupts."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            on_input(KeyPress.INTERRUPT)

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        """Add a line to the message."""
        event.current_buffer.insert_text("\n")

    return bindings
