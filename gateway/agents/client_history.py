"""Messages that a client keeps or adds, as a part of a conversation's history: its beginning, or later ones.

Tool calls get ids of their own in order, because clients repeat ids, and vendors limit their form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from gateway.agents.clients import messages as stored
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.history import HistoryEntry

MAX_HISTORY = 200_000
"""Characters of a history; the messages of a longer one are shortened."""

MAX_SHORTENED = 4000
"""Characters of a text in a history that has to be shortened."""

PROVIDER = "client"
ANSWER_FIRST = "(The conversation begins with an answer.)"
"""Stands before a first message of the agent, because vendors require that a person speaks first."""

GO_ON = "(continue)"
"""Stands before a message of the agent that a client adds after the agent's own answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCall:
    """A call of a tool: `id` is the client's, `name` the model's, and `arguments` are JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierMessage:
    """A message of a person, of the agent, or a result of a tool.

    `calls` are those of the agent; `call` is the id of the call that a result belongs to.
    """

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: Sequence[EarlierCall] = ()
    call: str = ""

    @property
    def size(self) -> int:
        """The characters of the message."""
        return len(self.text) + sum(len(one.arguments) for one in self.calls)

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON, which `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return a message of the JSON that `to_json` returned."""
        calls = tuple(EarlierCall(**one) for one in stored["calls"])
        return cls(role=stored["role"], text=stored["text"], calls=calls, call=stored["call"])


def to_history(
    earlier: Sequence[EarlierMessage], *, opening: str = ANSWER_FIRST, calls: str = "earlier"
) -> HistoryEntry | None:
    """Return earlier messages as one entry of a history; None if they say nothing.

    If they have more than MAX_HISTORY characters, long texts are cut, and then the oldest are left out.
    `opening` stands before a first message of the agent, and the ids of calls begin with `calls`, which no
    other entry of the history has.
    """
    said = [one for one in earlier if one.text or one.calls or one.role == "tool"]
    messages = _Messages(opening, calls)
    for one in _fitting(said):
        messages.add(one)
    return HistoryEntry(messages=tuple(messages.found)) if messages.found else None


class _Messages:
    """Stored messages, as they are built one after the other."""

    def __init__(self, opening: str, call_ids: str) -> None:
        self.found: list[ChatMessage] = []
        self._opening = opening
        self._call_ids = call_ids
        self._calls: dict[str, ChatPart] = {}
        self._count = 0

    def add(self, message: EarlierMessage) -> None:
        """Add a message of the client."""
        if message.role == "assistant":
            self._answer(message)
        elif message.role == "user":
            self._ask(stored.user_prompt(message.text))
        elif (call := self._calls.get(message.call)) is not None:
            self._ask(stored.tool_return(call, message.text))
        elif message.text:
            self._ask(stored.user_prompt(f"[a tool returned] {message.text}"))

    def _ask(self, part: ChatPart) -> None:
        """Add a part of a request; what a person says in several messages is one, as in the turn before."""
        before = self.found[-1]["parts"][-1] if self.found else part
        if before is not part and before["part_kind"] == part["part_kind"] == "user-prompt":
            before["content"] += f"\n\n{part['content']}"
        else:
            self.found.append(stored.request([part]))

    def _answer(self, message: EarlierMessage) -> None:
        """Add what the agent said and called; calls of one response may be messages of their own."""
        if not self.found:
            self._ask(stored.user_prompt(self._opening))
        if self.found[-1]["kind"] == "request":
            self.found.append(stored.response("", provider=PROVIDER, url=""))
        parts = self.found[-1]["parts"]
        if message.text:
            separator = "\n\n" if parts else ""
            parts.append({"part_kind": "text", "content": f"{separator}{message.text}"})
        parts.extend(map(self._call, message.calls))

    def _call(self, call: EarlierCall) -> ChatPart:
        self._count += 1
        made: ChatPart = {
            "part_kind": "tool-call",
            "tool_name": call.name,
            "args": call.arguments,
            "tool_call_id": f"{self._call_ids}_{self._count}",
        }
        self._calls[call.id] = made
        return made


def _fitting(said: Sequence[EarlierMessage]) -> Sequence[EarlierMessage]:
    """Return messages that have MAX_HISTORY characters at most, with a notice of those that are left out."""
    if _size(said) <= MAX_HISTORY:
        return said
    shortened = [_shorten(one) for one in said]
    first, left = len(shortened), MAX_HISTORY - len(_left_out(len(said)))
    while first and (left := left - shortened[first - 1].size) >= 0:
        first -= 1
    notice = [EarlierMessage(role="user", text=_left_out(first))] if first else []
    return [*notice, *shortened[first:]]


def _size(said: Iterable[EarlierMessage]) -> int:
    return sum(one.size for one in said)


def _left_out(count: int) -> str:
    return f"({count} earlier messages are left out)"


def _shorten(message: EarlierMessage) -> EarlierMessage:
    calls = tuple(replace(one, arguments=_shorten_arguments(one.arguments)) for one in message.calls)
    return replace(message, text=_cut_middle(message.text), calls=calls)


def _shorten_arguments(arguments: str) -> str:
    """Return arguments, or their beginning and end as an object, which vendors require."""
    if len(arguments) <= MAX_SHORTENED:
        return arguments
    return json.dumps({"shortened": _cut_middle(arguments)}, ensure_ascii=False)


def _cut_middle(text: str) -> str:
    """Return a text, or its beginning and its end if it is too long."""
    if len(text) <= MAX_SHORTENED:
        return text
    end = MAX_SHORTENED // 4
    return (
        f"{text[: MAX_SHORTENED - end]}\n({len(text) - MAX_SHORTENED} characters are left out)\n{text[-end:]}"
    )
