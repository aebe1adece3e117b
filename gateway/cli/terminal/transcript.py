"""Renders a conversation's events as text for a terminal; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.output import short
from gateway.cli.printable import clean

if TYPE_CHECKING:
    from gateway.cli.terminal.markdown import MarkdownStream

Event = Mapping[str, Any]

ENDS = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
"""The types of events that end a turn."""


class Transcript:
    """Renders events; tracks how much of the current message was already written.

    With `markdown` the texts of agents are rendered by blocks, wrapped to the `columns` that there are then.
    Otherwise they are written as they are.
    """

    def __init__(self, *, markdown: bool = False, columns: Callable[[], int] | None = None) -> None:
        self._streamed = ""
        self._markdown = _markdown_stream(columns) if markdown else None
        self._renderers: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "message.delta": self._delta,
            "message.completed": self._completed,
            "message.received": self._received,
            "turn.queued": self._queued,
            "turn.restarted": self._restarted,
            "turn.retrying": self._retrying,
            "turn.waiting": lambda about: self._line(f"… still {about.get('reason')}"),
            "turn.failed": self._failed,
            "turn.cancelled": lambda _about: self._line("■ cancelled"),
            "tool.called": lambda about: self._line(f"⚙ {render_tool_call(about)}"),
            "tool.completed": self._tool_completed,
            "approval.requested": lambda about: self._line(
                f"? {about.get('approval')} asks to run:\n{about.get('question') or render_tool_call(about)}"
            ),
            "approval.resolved": self._resolved,
            "approval.expired": self._expired,
            "question.expired": self._expired,
            "question.requested": lambda about: self._line(_render_question(about)),
            "question.answered": lambda about: self._line(
                f"  {about.get('approval')}: {about.get('answer') or 'not answered'}"
            ),
            "delivery.dead": lambda about: self._line(f"✗ delivery {about.get('delivery')} is dead"),
        }

    def render(self, event: Event) -> str:
        """Return the text to write for an event; often empty."""
        kind, about = str(event.get("type", "")), event.get("data") or {}
        if kind.startswith("job."):
            return self._line(render_job_state(kind, about)) + clean(render_files(about))
        shows = self._renderers.get(kind)
        return shows(about) if shows else ""

    def _line(self, text: str) -> str:
        """Return a separate line, after the streamed text."""
        return f"{self._end_of_text()}{clean(text)}\n"

    def _end_of_text(self) -> str:
        """Return what ends the streamed text, so that a line can follow it."""
        if self._markdown is not None:
            return self._markdown.flush()
        return "\n" if self._streamed and not self._streamed.endswith("\n") else ""

    def _delta(self, about: Mapping[str, Any]) -> str:
        text = str(about.get("text", ""))
        self._streamed += text
        return self._markdown.feed(text) if self._markdown is not None else clean(text)

    def _completed(self, about: Mapping[str, Any]) -> str:
        text, streamed = str(about.get("text", "")), self._streamed
        if about.get("role") == "user":
            return ""
        self._streamed = ""
        follows = bool(streamed) and text.startswith(streamed)
        rest = text[len(streamed) :] if follows else text
        if self._markdown is not None:
            start = "" if follows else self._markdown.flush()
            return start + self._markdown.feed(rest) + self._markdown.flush() + clean(render_files(about))
        start = "\n" if streamed and not follows else ""
        return f"{start}{clean(rest)}\n{clean(render_files(about))}"

    def _received(self, about: Mapping[str, Any]) -> str:
        return self._line(f"» {about.get('text', '')}")

    def _queued(self, about: Mapping[str, Any]) -> str:
        before = int(about.get("position") or 0)
        turns = "1 turn" if before == 1 else f"{before} turns"
        return self._line(f"… in line behind {turns} (dovecote turns list)") if before else ""

    def _restarted(self, _about: Mapping[str, Any]) -> str:
        line = self._line("↻ restarted; the earlier text of this turn no longer counts")
        self._streamed = ""
        return line

    def _retrying(self, about: Mapping[str, Any]) -> str:
        line = self._line(
            f"↻ {about.get('error')}; attempt {int(about.get('attempt', 0)) + 1} follows at "
            f"{about.get('at')} (/retry tries again now, /stop gives up)"
        )
        self._streamed = ""
        return line

    def _failed(self, about: Mapping[str, Any]) -> str:
        return self._line(f"✗ failed: {about.get('error') or 'no reason given'}")

    def _resolved(self, about: Mapping[str, Any]) -> str:
        return self._line(f"  {about.get('approval')}: {about.get('decision') or about.get('state')}")

    def _expired(self, about: Mapping[str, Any]) -> str:
        return self._line(f"  {about.get('approval')}: no longer needed, the turn has ended")

    def _tool_completed(self, about: Mapping[str, Any]) -> str:
        if about.get("name") == "bash" and about.get("resultId") is not None:
            return ""  # a background job: its own lines follow
        parts = ["failed" if about.get("ok") is False else "done"]
        if about.get("exit_code") is not None:
            parts = [f"exit {about['exit_code']}"]
        if about.get("timed_out"):
            parts.append("timed out")
        if about.get("duration_ms") is not None:
            parts.append(f"{about['duration_ms']} ms")
        return self._line(f"  {about.get('name', '')} {', '.join(parts)}")


def _render_question(about: Mapping[str, Any]) -> str:
    choices = [f"{number}. {choice}" for number, choice in enumerate(about.get("choices") or (), start=1)]
    fields = [f"- {name}: {meaning}" for name, meaning in (about.get("form") or {}).items()]
    form = ["Answer with every field, as in `name: value; name: value`."] if fields else []
    return "\n".join([f"? {about.get('approval')} asks: {about.get('question')}", *choices, *fields, *form])


def _markdown_stream(columns: Callable[[], int] | None) -> MarkdownStream:
    from gateway.cli.terminal.markdown import MarkdownStream

    return MarkdownStream(columns)


def render_files(about: Mapping[str, Any]) -> str:
    """Return a line for each file of an event: its name and URL."""
    return "".join(f"{file.get('name')} {file.get('url', '')}\n" for file in about.get("files") or [])


def render_tool_call(about: Mapping[str, Any]) -> str:
    """Return a tool call as its name with its command or arguments."""
    args = about.get("args") or {}
    command = about.get("command") or args.get("command") or (args or "")
    name = about.get("name") or about.get("tool") or "tool"
    if str(command).startswith(f"{name} {{"):  # an approval's command has the name of a tool before JSON
        return short(command, 200)
    return f"{name} {short(command, 200)}".rstrip()


def render_decision_command(event: Event) -> str:
    """Return what waits for a person, and the command that decides it."""
    about = event.get("data") or {}
    approval = about.get("approval")
    if event.get("type") == "question.requested":
        return clean(f"{approval} waits for an answer: dovecote approvals answer {approval} TEXT")
    waits = f"{approval} waits for approval of {render_tool_call(about)}"
    return clean(f"{waits}: dovecote approvals approve {approval} (or deny {approval})")


def render_job_state(kind: str, about: Mapping[str, Any]) -> str:
    """Return a line about the state of a job; its output follows in a message."""
    exit_code = f", exit {about['exit_code']}" if about.get("exit_code") is not None else ""
    return f"● job {about.get('resultId', '')} {kind.partition('.')[2]}{exit_code}"


def render_summary(event: Event) -> str:
    """Return the line that `tail` prints for an event."""
    about = event.get("data") or {}
    kind = str(event.get("type", ""))
    number = "" if event.get("n") is None else f"#{event['n']}"
    text = about.get("text") or about.get("output") or about.get("error") or about.get("command")
    text = text or (render_tool_call(about) if kind.startswith("tool.") else about.get("resultId") or "")
    place = f"{event.get('seq', ''):>8} {number:>6} {event.get('time', '')}"
    return clean(f"{place} {kind:<20} {short(text, 120)}".rstrip())
