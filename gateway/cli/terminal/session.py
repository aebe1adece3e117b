"""An interactive terminal session: send lines, show events, ask for approvals."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

import typer

from delivery.events.event import REQUEST_ENDS
from gateway.cli.errors import print_error
from gateway.cli.printable import clean
from gateway.cli.terminal.conversation_client import ConversationClient, MessageTooLong
from gateway.cli.terminal.screens import ChatScreen, KeyPress, TypedLine
from gateway.cli.terminal.transcript import (
    ENDS,
    Transcript,
    render_decision_command,
    render_tool_call,
)

PIPED_AT_ONCE = 20
"""Messages of piped input that may be unanswered at a time: a conversation's queue is limited."""

REFUSED = "refused"
HELP = (
    "Type a message; !COMMAND runs it, !&COMMAND in the background.\n"
    "/help lists the commands, Ctrl-C stops a turn, Ctrl-D leaves."
)

Frame = Mapping[str, Any]
SessionInput = TypedLine | KeyPress | Frame


class TerminalSession:
    """Handles frames of the gateway, typed lines, Ctrl-C and the end of input, one at a time."""

    def __init__(
        self,
        client: ConversationClient,
        screen: ChatScreen,
        *,
        agent: str | None = None,
        once: str | None = None,
        markdown: bool = False,
    ) -> None:
        self._client = client
        self._screen = screen
        self._agent = agent
        self._once = once
        self._inputs: asyncio.Queue[SessionInput] = asyncio.Queue()
        self._transcript = Transcript(markdown=markdown, columns=_terminal_columns)
        self._turns: dict[str, str | None] = {}
        self._cancelled: set[str] = set()
        self._early_events: list[Frame] = []
        self._sent_texts: list[str] = []
        self._unaccepted: dict[str, str] = {}
        self._awaited_replies: list[str] = []
        self._pending_approvals: list[Frame] = []
        self._piped: deque[TypedLine | KeyPress] = deque()
        self._has_failures = False
        self._is_connected = False
        self._input_ended = False
        self._leaving = False
        self._last_state = ""
        self._at_terminal = sys.stdin.isatty()
        self._group = asyncio.TaskGroup()
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> str:
        """Run until the person exits or the one message is answered; returns how the last turn ended.

        For piped input that is REFUSED if a message was refused, or its turn did not complete.
        """
        with on_interrupt(lambda: self._inputs.put_nowait(KeyPress.INTERRUPT)):
            async with self._group as group:
                following = group.create_task(self._follow())
                await self._start()
                while not self._is_over():
                    await self._handle(await self._inputs.get())
                    await self._handle_piped()
                following.cancel()
                if self._reading is not None:
                    self._reading.cancel()
        if self._running() and not self._pending_approvals:
            typer.echo("what runs goes on without this terminal; see dovecote turns list", err=True)
        is_piped = self._once is None and not self._at_terminal
        return REFUSED if is_piped and self._has_failures else self._last_state

    async def _follow(self) -> None:
        report = print_error if self._at_terminal else None
        async with aclosing(self._client.frames(report=report, gives_up=self._gives_up)) as frames:
            async for frame in frames:
                self._inputs.put_nowait(frame)

    def _gives_up(self) -> bool:
        """Return whether to end without a connection: a person who types may wait, and can leave."""
        return not self._at_terminal or self._once is not None or self._input_ended

    async def _start(self) -> None:
        if self._once is not None:
            await self._send_message(self._once)
            return
        if self._at_terminal:
            typer.echo(HELP)
            self._screen.prompt()
        self._read_input()

    def _read_input(self) -> None:
        self._reading = self._group.create_task(self._screen.read(self._inputs.put_nowait))

    def _is_over(self) -> bool:
        """Return whether to end: a person who leaves waits only until the gateway has what was typed.

        Piped input without a message ends when the gateway has answered.
        """
        leaves = self._input_ended and self._at_terminal and self._once is None
        waits = not self._is_connected or self._awaited_replies or self._running()
        busy = self._unaccepted or (not leaves and waits)
        return self._leaving or (not busy and (self._input_ended or self._once is not None))

    def _running(self) -> list[str]:
        return [turn for turn, end in self._turns.items() if end is None]

    async def _handle_piped(self) -> None:
        """Handle the lines of piped input, in order, as far as not too many messages are unanswered."""
        while self._piped and (
            self._pending_approvals or len(self._unaccepted) + len(self._running()) < PIPED_AT_ONCE
        ):
            line = self._piped.popleft()
            if isinstance(line, TypedLine):
                await self._on_line(line.text)
            else:
                self._on_end_of_input()

    async def _handle(self, received: SessionInput) -> None:
        if received is KeyPress.INTERRUPT:
            await self._on_interrupt()
        elif isinstance(received, TypedLine | KeyPress) and not self._at_terminal:
            self._piped.append(received)
        elif isinstance(received, TypedLine):
            await self._on_line(received.text)
        elif received is KeyPress.END:
            self._on_end_of_input()
        elif isinstance(received, Mapping):
            await self._on_frame(received)

    async def _on_interrupt(self) -> None:
        """Handle Ctrl-C: cancel the running turns; leave if there are none, or if they do not end."""
        running = set(self._running())
        if running <= self._cancelled:
            self._leaving = True
            typer.echo()
        self._cancelled |= running
        for turn in running:
            await self._client.cancel(turn)

    def _on_end_of_input(self) -> None:
        self._input_ended = True
        for event in self._pending_approvals if self._at_terminal else ():
            print_error(render_decision_command(event))
        if self._pending_approvals:
            self._leaving, self._last_state = True, "approval.requested"

    async def _on_line(self, text: str) -> None:
        if self._pending_approvals:
            await self._decide(text)
        elif text.strip():
            await self._send_message(text)
        else:
            self._screen.prompt()

    async def _send_message(self, text: str) -> None:
        try:
            self._unaccepted[await self._client.send_message(text, agent=self._agent)] = text
        except MessageTooLong as error:
            print_error(str(error))
            self._last_state, self._has_failures = REFUSED, True
            self._screen.prompt()
        else:
            self._sent_texts.append(text)

    async def _decide(self, text: str) -> None:
        if self._pending_approvals[0]["type"] == "question.requested":
            if text.strip():
                await self._client.answer(self._pending_approvals[0]["data"]["approval"], text)
            return
        if text.strip().lower() not in {"y", "yes", "n", "no"}:
            self._screen.ask("approve? y/n ")
            return
        event = self._pending_approvals.pop(0)
        self._screen.end_question()
        await self._client.decide(event["data"]["approval"], approved=text.strip().lower().startswith("y"))

    async def _on_frame(self, frame: Frame) -> None:
        kind, self._is_connected = str(frame.get("type")), True
        if kind == "accepted":
            self._on_accepted(frame)
        elif kind == "error":
            self._on_error(frame)
        elif kind == "gap":
            self._awaited_replies.clear()
            print_error(f"events {frame.get('from')} to {frame.get('to')} are no longer stored")
        elif kind == "reset":
            self._awaited_replies.clear()
            print_error("the conversation's event stream was recreated")
        elif "seq" in frame and "." in kind:
            self._on_event(frame)

    def _on_accepted(self, frame: Frame) -> None:
        text = self._unaccepted.pop(str(frame.get("id")), "")
        if frame.get("turn") is None:
            self._on_command(frame, text)
        else:
            self._turns.setdefault(str(frame["turn"]), None)
        early, self._early_events = self._early_events, []
        for event in early:
            self._on_event(event)

    def _on_command(self, frame: Frame, text: str) -> None:
        """Show that a command was executed; in a session its reply is an event, and is waited for."""
        self._last_state = "turn.completed"
        if text in self._sent_texts:
            self._sent_texts.remove(text)
        if self._once is not None:
            typer.echo(clean(str(frame.get("reply") or "")))
        elif frame.get("reply"):
            self._awaited_replies.append(str(frame["reply"]))
        self._screen.prompt()

    def _on_error(self, frame: Frame) -> None:
        print_error(str(frame.get("detail") or frame.get("code")))
        if str(frame.get("id")) in self._unaccepted:
            self._unaccepted.pop(str(frame["id"]), None)
            self._last_state, self._has_failures = REFUSED, True
            self._screen.prompt()

    def _on_event(self, event: Frame) -> None:
        """Show an event; events before our turn is known wait, because they may be ours."""
        turn = event.get("turn")
        if self._unaccepted and turn not in self._turns:
            self._early_events.append(event)
            return
        about = event.get("data") or {}
        is_notice = about.get("role") == "notice"  # of no turn, for instance that a file was not sent
        if self._once is None or turn in self._turns or is_notice:
            self._show(event)
        if turn in self._turns and event["type"] in ENDS:
            self._turns[turn], self._last_state = str(event["type"]), str(event["type"])
            self._has_failures |= event["type"] != "turn.completed"
            if not self._running():
                self._screen.prompt()

    def _show(self, event: Frame) -> None:
        about = event.get("data") or {}
        if event["type"] == "message.received" and about.get("text") in self._sent_texts:
            self._sent_texts.remove(about["text"])
            return
        if about.get("role") == "notice" and about.get("text") in self._awaited_replies:
            self._awaited_replies.remove(about["text"])
        self._screen.write(self._transcript.render(event))
        if event["type"] in {"approval.requested", "question.requested"} and event.get("turn") in self._turns:
            self._ask_approval(event)
        if event["type"] in REQUEST_ENDS:
            self._pending_approvals = [
                one for one in self._pending_approvals if one["data"]["approval"] != about.get("approval")
            ]
            if not self._pending_approvals:
                self._screen.end_question()

    def _ask_approval(self, event: Frame) -> None:
        self._pending_approvals.append(event)
        if self._reading is None:
            self._read_input()
        if self._at_terminal and event["type"] == "question.requested":
            self._screen.ask("your answer: ")
        elif self._at_terminal:
            self._screen.ask(f"approve {clean(render_tool_call(event['data']))}? y/n ")
        else:
            print_error(render_decision_command(event))
        if self._input_ended:
            self._on_end_of_input()


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on Ctrl-C inside the block."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, action)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns
