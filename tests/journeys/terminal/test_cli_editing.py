"""`chat` at a terminal: pasted text, editing, keys that stop and leave, questions below the output."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pyte
import pytest

from commands import gateway_command
from fake_gateway import ClientSocket, FakeGateway, Script, fake_gateway
from gateway.config.load import environment_without_ours

PASTE = "\x1b[200~{}\x1b[201~"
"""What a terminal sends for pasted text (xterm, "Bracketed Paste Mode")."""
COLUMNS, LINES = 80, 24
INTERRUPT, END, UP, LEFT, NEW_LINE = "\x03", "\x04", "\x1b[A", "\x1b[D", "\x1b\r"


class EmulatedTerminal(pyte.HistoryScreen):
    """A terminal at which `chat` runs; it responds to requests for the cursor's position."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(COLUMNS, LINES, history=1000)
        self._descriptor = descriptor
        self._output = pyte.ByteStream(self)
        self._news = asyncio.Event()

    def read(self) -> None:
        """Show what the command writes."""
        try:
            piece = os.read(self._descriptor, 65536)
        except OSError:  # the command ended
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return
        self._output.feed(piece)
        self._news.set()

    def write_process_input(self, data: str) -> None:
        """Send a response of the terminal to the command."""
        self.type(data)

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._descriptor, text.encode())

    def shown(self) -> list[str]:
        """Return the lines that are shown, without empty ones at the end and those that scrolled away."""
        return "\n".join(line.rstrip() for line in self.display).rstrip().split("\n")

    async def wait_for(self, *lines: str) -> None:
        """Wait until these are the last lines that are shown."""
        try:
            async with asyncio.timeout(30):
                while self.shown()[-len(lines) :] != list(lines):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pytest.fail("\n".join(["shown:", *self.shown(), "expected at the end:", *lines]))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """Return a simulated gateway."""
    with fake_gateway() as stand_in:
        yield stand_in


@asynccontextmanager
async def chat_at_terminal(
    gateway: FakeGateway, directory: Path, *words: str, **variables: str
) -> AsyncIterator[EmulatedTerminal]:
    """Run `chat` at a terminal until it ends, which must be with 0."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**environment_without_ours(), "TERM": "xterm-256color", **variables}
    child = await gateway_command(
        "chat", *words, "--url", gateway.url,
        env=env, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, started=True,
    )  # fmt: skip
    os.close(theirs)
    terminal = EmulatedTerminal(ours)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, terminal.read)
    try:
        await terminal.wait_for(">")
        yield terminal
        async with asyncio.timeout(30):
            assert await child.wait() == 0, terminal.shown()
    finally:
        if child.returncode is None:
            child.kill()
        loop.remove_reader(ours)
        os.close(ours)


def receive(messages: Queue[str], *, count: int = 1, then: Script | None = None) -> Script:
    """Return a script that takes some messages and completes their turns."""

    async def script(socket: ClientSocket) -> None:
        await socket.receive("subscribe")
        await socket.send_control("subscribed", conversation="cnv_1", epoch="e", first_seq=0, last_seq=0)
        for number in range(count):
            sent = await socket.receive("send")
            messages.put(sent["text"])
            await socket.send_control("accepted", id=sent["id"], turn=f"trn_{number}", conversation="cnv_1")
            if then is not None:
                await then(socket)
            await socket.send_event("turn.completed", f"trn_{number}")
        await socket.socket.receive()

    return script


async def next_of(messages: Queue[str]) -> str:
    """Return the next message of the gateway."""
    return await asyncio.to_thread(messages.get, timeout=30)


Story = Callable[[EmulatedTerminal, Queue[Any]], Awaitable[None]]


def act(
    gateway: FakeGateway,
    directory: Path,
    script: Callable[[Queue[Any]], Script],
    story: Story,
    *words: str,
    **env: str,
) -> None:
    """Run a story of what a person types; Ctrl-D ends it, if it has not ended."""
    messages: Queue[Any] = Queue()
    gateway.scripts = [script(messages)]

    async def run() -> None:
        async with chat_at_terminal(gateway, directory, *words, **env) as terminal:
            await story(terminal, messages)
            terminal.type(END)

    asyncio.run(run())


def test_a_long_line_is_sent_whole(gateway: FakeGateway, tmp_path: Path) -> None:
    """A terminal that edits lines itself cuts them after 4,095 bytes (termios(3), canonical mode)."""
    line = "x" * 6000 + " end"

    async def paste(terminal: EmulatedTerminal, messages: Queue[str]) -> None:
        for start in range(0, len(line), 1000):
            terminal.type(line[start : start + 1000])
        terminal.type("\r")
        assert await next_of(messages) == line

    act(gateway, tmp_path, receive, paste)


def test_a_dumb_terminal_sends_no_part_of_a_line(gateway: FakeGateway, tmp_path: Path) -> None:
    """A line that the terminal cut is refused, and the next one is sent."""

    async def paste(terminal: EmulatedTerminal, messages: Queue[str]) -> None:
        for _ in range(5):
            terminal.type("x" * 1000)
        terminal.type("\n")
        await terminal.wait_for("dovecote: the terminal cut this line after 4095 bytes: it was not sent", ">")
        terminal.type("short\n")
        assert await next_of(messages) == "short"

    act(gateway, tmp_path, receive, paste, TERM="dumb")


def test_pasted_lines_are_one_message(gateway: FakeGateway, tmp_path: Path) -> None:
    """A pasted trace of several lines is sent by Enter, once."""

    async def paste(terminal: EmulatedTerminal, messages: Queue[str]) -> None:
        terminal.type("why? " + PASTE.format("line one\rline two\rline three"))
        await terminal.wait_for("> why? line one", "line two", "line three")
        assert messages.empty()
        terminal.type("\r")
        assert await next_of(messages) == "why? line one\nline two\nline three"

    act(gateway, tmp_path, receive, paste)


def test_a_line_is_edited_and_repeated(gateway: FakeGateway, tmp_path: Path) -> None:
    """Cursor keys move in the line, Alt-Enter begins a new one, and the earlier message returns with Up."""

    async def edit(terminal: EmulatedTerminal, messages: Queue[str]) -> None:
        terminal.type(f"ac{LEFT}b{NEW_LINE}-\r")
        assert await next_of(messages) == "ab\n-c"
        terminal.type(f"{UP}!\r")
        assert await next_of(messages) == "ab\n-c!"

    act(gateway, tmp_path, lambda messages: receive(messages, count=2), edit)


async def _stream_an_answer(socket: ClientSocket) -> None:
    """Stream an answer, the next piece of which follows when the person types a message."""
    await socket.send_event("message.delta", message="m", part=0, text="first line\nsecond")
    sent = await socket.receive("send")
    await socket.send_event("message.delta", message="m", part=1, text=" line")
    await socket.send_event("message.completed", role="assistant", text="first line\nsecond line")
    await socket.send_control("accepted", id=sent["id"], turn="trn_9", conversation="cnv_1")
    await socket.send_event("turn.completed", "trn_9")


def test_an_answer_is_shown_above_what_is_typed(gateway: FakeGateway, tmp_path: Path) -> None:
    """The line that is typed stays below the answer, the last line of which may be unfinished."""

    async def talk(terminal: EmulatedTerminal, _messages: Queue[str]) -> None:
        terminal.type("hello\r")
        await terminal.wait_for("> hello", "first line", "second", ">")
        terminal.type("nex")
        await terminal.wait_for("first line", "second", "> nex")
        terminal.type("t\r")
        await terminal.wait_for("first line", "> next", "second line", ">")

    act(gateway, tmp_path, lambda messages: receive(messages, then=_stream_an_answer), talk, "--plain")


async def _ask(socket: ClientSocket) -> None:
    """Ask for approval and for an answer, and repeat what was said."""
    await socket.send_event("approval.requested", "trn_0", approval="apr_1", tool="bash", command="rm x")
    decided = await socket.receive("approve")
    await socket.send_event("approval.resolved", "trn_0", approval="apr_1", decision=decided["decision"])
    await socket.send_event("question.requested", "trn_0", approval="apr_2", question="Why?")
    answered = await socket.receive("approve")
    await socket.send_event("question.answered", "trn_0", approval="apr_2", answer=answered["answer"])


def test_a_question_labels_the_line_that_answers_it(gateway: FakeGateway, tmp_path: Path) -> None:
    """Until it is answered, the next input is the answer."""

    async def answer(terminal: EmulatedTerminal, _messages: Queue[str]) -> None:
        terminal.type("clean\r")
        await terminal.wait_for("approve bash rm x? y/n")
        terminal.type("what\r")
        await terminal.wait_for("approve? y/n")
        terminal.type("y\r")
        await terminal.wait_for("? apr_2 asks: Why?", "your answer:")
        terminal.type("because\r")
        await terminal.wait_for("  apr_2: because", ">")

    act(gateway, tmp_path, lambda messages: receive(messages, then=_ask), answer)


def test_ctrl_c_clears_the_line_then_stops_the_turn_then_leaves(gateway: FakeGateway, tmp_path: Path) -> None:
    """What was typed is cleared first, so that a person who changes their mind does not stop the turn."""

    async def press(terminal: EmulatedTerminal, messages: Queue[str]) -> None:
        terminal.type("go\r")
        assert await next_of(messages) == "go"
        terminal.type("no wait")
        await terminal.wait_for("> no wait")
        terminal.type(INTERRUPT)
        await terminal.wait_for("> go", ">")
        terminal.type(INTERRUPT)
        assert await next_of(messages) == "cancelled"
        terminal.type(INTERRUPT)

    def script(messages: Queue[Any]) -> Script:
        async def cancel(socket: ClientSocket) -> None:
            await socket.receive("cancel")
            messages.put("cancelled")

        return receive(messages, then=cancel)

    act(gateway, tmp_path, script, press)
