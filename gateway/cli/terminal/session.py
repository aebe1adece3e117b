"""A person at a terminal and a gateway: lines are sent, events are shown, approvals are asked for."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import typer

from gateway.cli.errors import complain
from gateway.cli.terminal.conversation_client import Talk
from gateway.cli.terminal.stdin_lines import typed_lines
from gateway.cli.terminal.transcript import ENDS, Transcript, tool

PROMPT = "> "
HELP = "Type a message; !COMMAND runs it, !&COMMAND in the background. Ctrl-C stops a turn, Ctrl-D leaves."

Frame = Mapping[str, Any]


class Key(Enum):
    """What a person can press beside a line."""

    INTERRUPT = "interrupt"
    END = "end"


@dataclass(frozen=True, slots=True)
class Line:
    """What a person typed."""

    text: str


Happening = Line | Key | Frame


class Session:
    """Reacts to one happening after the other: frames of the gateway, lines, Ctrl-C, the end of input."""

    def __init__(self, talk: Talk, *, agent: str | None = None, once: str | None = None) -> None:
        self._talk = talk
        self._agent = agent
        self._once = once
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        self._transcript = Transcript()
        self._turns: dict[str, str | None] = {}
        self._early: list[Frame] = []
        self._said: list[str] = []
        self._unanswered: set[str] = set()
        self._asked: list[Frame] = []
        self._ended = False
        self._left = False
        self._last = ""
        self._at_terminal = sys.stdin.isatty()
        self._stack = ExitStack()

    async def run(self) -> str:
        """Talk until the person leaves or the one message is answered; returns how the last turn ended."""
        with self._stack, on_interrupt(lambda: self._happenings.put_nowait(Key.INTERRUPT)):
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow())
                await self._begin()
                while not self._is_over():
                    await self._react(await self._happenings.get())
                following.cancel()
        return self._last

    async def _follow(self) -> None:
        async with aclosing(self._talk.frames()) as frames:
            async for frame in frames:
                self._happenings.put_nowait(frame)

    async def _begin(self) -> None:
        if self._once is not None:
            await self._say(self._once)
            return
        self._read_lines()
        if self._at_terminal:
            typer.echo(HELP)
            self._prompt()

    def _read_lines(self) -> None:
        def put(line: str | None) -> None:
            self._happenings.put_nowait(Key.END if line is None else Line(line))

        self._stack.enter_context(typed_lines(sys.stdin.fileno(), put))

    def _prompt(self) -> None:
        if self._at_terminal and self._once is None:
            typer.echo(PROMPT, nl=False)

    def _is_over(self) -> bool:
        busy = self._unanswered or self._running()
        return self._left or (not busy and (self._ended or self._once is not None))

    def _running(self) -> list[str]:
        return [turn for turn, end in self._turns.items() if end is None]

    async def _react(self, happening: Happening) -> None:
        if isinstance(happening, Line):
            await self._typed(happening.text)
        elif happening is Key.INTERRUPT:
            await self._interrupted()
        elif happening is Key.END:
            self._end_of_input()
        elif isinstance(happening, Mapping):
            await self._framed(happening)

    async def _interrupted(self) -> None:
        """Ctrl-C: stop the turns at work; without one, leave."""
        if not self._running():
            self._left = True
            typer.echo()
        for turn in self._running():
            await self._talk.cancel(turn)

    def _end_of_input(self) -> None:
        self._ended = True
        for event in self._asked:
            approval = event["data"].get("approval")
            complain(f"{approval} waits for a person: dovecote approvals approve {approval}")
        if self._asked:
            self._left, self._last = True, "approval.requested"

    async def _typed(self, text: str) -> None:
        if self._asked:
            await self._decide(text)
        elif text.strip():
            await self._say(text)
        else:
            self._prompt()

    async def _say(self, text: str) -> None:
        self._said.append(text)
        self._unanswered.add(await self._talk.say(text, agent=self._agent))

    async def _decide(self, text: str) -> None:
        if text.strip().lower() not in {"y", "yes", "n", "no"}:
            typer.echo("approve? y/n ", nl=False)
            return
        event = self._asked.pop(0)
        await self._talk.decide(event["data"]["approval"], approved=text.strip().lower().startswith("y"))

    async def _framed(self, frame: Frame) -> None:
        kind = str(frame.get("type"))
        if kind == "accepted":
            self._accepted(frame)
        elif kind == "error":
            self._refused(frame)
        elif kind == "gap":
            complain(f"events {frame.get('from')} to {frame.get('to')} are no longer kept")
        elif kind == "reset":
            complain("the conversation's stream was made anew")
        elif "seq" in frame and "." in kind:
            self._event(frame)

    def _accepted(self, frame: Frame) -> None:
        self._unanswered.discard(str(frame.get("id")))
        self._turns.setdefault(str(frame.get("turn")), None)
        early, self._early = self._early, []
        for event in early:
            self._event(event)

    def _refused(self, frame: Frame) -> None:
        complain(str(frame.get("detail") or frame.get("code")))
        if str(frame.get("id")) in self._unanswered:
            self._unanswered.discard(str(frame["id"]))
            self._last = "refused"
            self._prompt()

    def _event(self, event: Frame) -> None:
        """Show an event; those that come before we know our turn wait, they may be ours."""
        turn = event.get("turn")
        if self._unanswered and turn not in self._turns:
            self._early.append(event)
            return
        if self._once is None or turn in self._turns:
            self._show(event)
        if turn in self._turns and event["type"] in ENDS:
            self._turns[turn], self._last = str(event["type"]), str(event["type"])
            if not self._running():
                self._prompt()

    def _show(self, event: Frame) -> None:
        about = event.get("data") or {}
        if event["type"] == "message.received" and about.get("text") in self._said:
            self._said.remove(about["text"])
            return
        typer.echo(self._transcript.show(event), nl=False)
        if event["type"] == "approval.requested" and event.get("turn") in self._turns:
            self._ask(event)
        if event["type"] == "approval.resolved":
            self._asked = [one for one in self._asked if one["data"]["approval"] != about.get("approval")]

    def _ask(self, event: Frame) -> None:
        self._asked.append(event)
        if self._once is not None and len(self._asked) == 1:
            self._read_lines()
        if self._at_terminal:
            typer.echo(f"approve {tool(event['data'])}? y/n ", nl=False)
        elif self._ended:
            self._end_of_input()


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on Ctrl-C while inside."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, action)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
