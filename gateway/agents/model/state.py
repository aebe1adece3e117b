"""The model agent's state between attempts and turns, and how it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import is_
from typing import Any

from gateway.agents import history
from gateway.agents.clients import messages as stored
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.port import EarlierTurn
from gateway.agents.clients.text import repair_surrogates
from gateway.agents.history import HistoryEntry, TurnProgress, UnreadableHistory
from gateway.agents.model import compaction, images
from gateway.agents.port import CUT_NOTICES, AgentError

MAX_NOTES = 60


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The conversation before this turn: its turns, their messages and estimated tokens, and its notes."""

    turns: Sequence[EarlierTurn] = ()
    messages: Sequence[ChatMessage] = ()
    tokens: int = 0
    notes: Sequence[str] = ()


@dataclass(kw_only=True)
class TurnUsage:
    """The usage of one turn: requests that were answered, and their tokens."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def add(self, response: ChatMessage) -> None:
        """Count a response."""
        used = response.get("usage") or {}
        self.requests += 1
        self.input_tokens += used.get("input_tokens", 0)
        self.output_tokens += used.get("output_tokens", 0)
        self.cache_read_tokens += used.get("cache_read_tokens", 0)
        self.cache_write_tokens += used.get("cache_write_tokens", 0)


@dataclass(kw_only=True)
class AgentState:
    """The state of a turn: the conversation's messages, and the state of the run loop.

    `messages` contain the `earlier` ones too, unless compaction has replaced them. `usage` counts this turn
    alone. `waiting` are the calls that the turn paused for. `notes` are facts that compaction keeps verbatim:
    decisions about approvals and results of jobs. `repeats` counts how often the call `last_call` was
    repeated in a row. `received` counts the steering messages in the conversation. `replaces` means
    that an attempt before this one compacted the conversation.
    """

    messages: list[ChatMessage] = field(default_factory=list)
    usage: TurnUsage = field(default_factory=TurnUsage)
    waiting: list[ChatPart] | None = None
    notes: list[str] = field(default_factory=list)
    last_call: str = ""
    repeats: int = 0
    received: int = 0
    earlier: Earlier = field(default_factory=Earlier)
    replaces: bool = False

    @property
    def all_notes(self) -> list[str]:
        """Return the notes of the whole conversation, the oldest removed if there are too many."""
        return [*self.earlier.notes, *self.notes][-MAX_NOTES:]

    def final_text(self) -> str | None:
        """Return the final text if the model has given it already, as after a crash just before the end."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["kind"] == "request" or stored.calls_of(last):
            return None
        return shown_text(last) or None

    def add_note(self, fact: str) -> None:
        """Keep a fact beyond compaction; the oldest are removed if there are too many."""
        self.notes = [*self.notes, fact][-MAX_NOTES:]

    def estimate_tokens(self) -> int:
        """Return the estimated tokens of the conversation; those of the earlier messages are counted once."""
        known, own = self._divided()
        return (self.earlier.tokens if known else 0) + compaction.estimate_tokens(own)

    def sent_messages(self) -> list[ChatMessage]:
        """Return the conversation as vendors accept it; the earlier messages are repaired already."""
        known, own = self._divided()
        return [*known, *stored.repaired(own)]

    def sent_turns(self) -> Sequence[EarlierTurn]:
        """Return the earlier turns that `sent_messages` begins with."""
        known, _ = self._divided()
        return self.earlier.turns if known else ()

    def _divided(self) -> tuple[Sequence[ChatMessage], Sequence[ChatMessage]]:
        """Return the earlier messages, or none if they were replaced, and the messages after them."""
        earlier = self.earlier.messages
        if len(self.messages) >= len(earlier) and all(map(is_, earlier, self.messages)):
            return earlier, self.messages[len(earlier) :]
        return (), self.messages

    def to_entry(self) -> HistoryEntry:
        """Return what the finished turn adds to the history."""
        return self._entry(images.for_history)

    def to_progress(self) -> TurnProgress:
        """Return what the turn adds so far, with the state to resume from."""
        conversation: dict[str, Any] = {"usage": asdict(self.usage)}
        if self.waiting is not None:
            conversation["deferred_tool_requests"] = {"calls": [], "approvals": self.waiting, "metadata": {}}
        state = {
            "conversation": conversation,
            "last_call": self.last_call,
            "repeats": self.repeats,
            "heard": self.received,
        }
        return TurnProgress(entry=self._entry(images.without_image_bytes), state=state)

    def _entry(self, without_images: Callable[[Iterable[ChatMessage]], list[ChatMessage]]) -> HistoryEntry:
        known, own = self._divided()
        replaces = self.replaces or bool(self.earlier.messages and not known)
        return HistoryEntry(
            messages=tuple(_without_instructions(message) for message in without_images(own)),
            notes=tuple(self.all_notes if replaces else self.notes),
            replaces=replaces,
        )


@dataclass(frozen=True, kw_only=True)
class _ParsedEntry:
    turn: EarlierTurn
    tokens: int


@dataclass(frozen=True, kw_only=True)
class _KnownConversation:
    """The conversation up to one entry, derived from it and the entries `before` it.

    `turns` are the entries since the last one that replaces those before it.
    """

    before: Sequence[HistoryEntry] = ()
    earlier: Earlier = field(default_factory=Earlier)
    turns: int = 0


_PARSED = "parsed by the model agent"
_KNOWN = "the conversation up to this entry, by the model agent"
_NOTHING_KNOWN = _KnownConversation()

TURNS_PER_GROUP = 64
"""Earlier turns that are combined into one, so that a turn's work hardly grows with the conversation."""


def shown_text(response: ChatMessage) -> str:
    """Return the text of an answer for people, with the reason if it ends too early."""
    text = stored.response_text(response)
    notice = CUT_NOTICES.get(response.get("finish_reason") or "")
    return f"{text}\n\n{notice}" if text and notice else text


def repair_response(response: ChatMessage) -> None:
    """Replace text that cannot be stored."""
    for part in response["parts"]:
        if part["part_kind"] in {"text", "thinking"}:
            part["content"] = repair_surrogates(part["content"])
        elif isinstance(part.get("args"), str):
            part["args"] = stored.storable_arguments(part)


def encode(state: AgentState) -> bytes:
    """Return a turn's progress as bytes."""
    return history.encode_progress(state.to_progress())


def initial_state(entries: Sequence[HistoryEntry]) -> AgentState:
    """Return the state at the start of a turn: the conversation so far.

    Calls without a result are closed, because models refuse them.
    """
    earlier = _earlier(entries)
    return AgentState(messages=list(earlier.messages), earlier=earlier)


def _earlier(entries: Sequence[HistoryEntry]) -> Earlier:
    """Return the conversation so far: what the turn before knew, and the entries after that."""
    count, known = _find_known(entries)
    added = history.effective(entries[count:])
    if not added:
        return known.earlier
    before = _NOTHING_KNOWN if added[0].replaces else known
    parsed = [_parse(entry) for entry in added]
    notes = [*before.earlier.notes, *chain.from_iterable(entry.notes for entry in added)]
    earlier = Earlier(
        turns=_grouped(before, [one.turn for one in parsed]),
        messages=(*before.earlier.messages, *chain.from_iterable(one.turn.messages for one in parsed)),
        tokens=before.earlier.tokens + sum(one.tokens for one in parsed),
        notes=tuple(notes[-MAX_NOTES:]),
    )
    entries[-1].derived[_KNOWN] = _KnownConversation(
        before=tuple(entries[:-1]), earlier=earlier, turns=before.turns + len(added)
    )
    if len(entries) > 1:
        entries[-2].derived.pop(_KNOWN, None)
    return earlier


def _find_known(entries: Sequence[HistoryEntry]) -> tuple[int, _KnownConversation]:
    """Return what an earlier turn derived, and from how many entries: all, all but the last one, or none."""
    for place in range(len(entries) - 1, max(len(entries) - 3, -1), -1):
        known: _KnownConversation | None = entries[place].derived.get(_KNOWN)
        if known is not None and len(known.before) == place and all(map(is_, known.before, entries)):
            return place + 1, known
    return 0, _NOTHING_KNOWN


def _grouped(before: _KnownConversation, added: Sequence[EarlierTurn]) -> Sequence[EarlierTurn]:
    """Return the earlier turns: the oldest in groups of a fixed size, the others one by one."""
    whole = before.turns // TURNS_PER_GROUP
    groups, turns = list(before.earlier.turns[:whole]), [*before.earlier.turns[whole:], *added]
    while len(turns) >= TURNS_PER_GROUP:
        merged, turns = turns[:TURNS_PER_GROUP], turns[TURNS_PER_GROUP:]
        groups.append(EarlierTurn(messages=list(chain.from_iterable(one.messages for one in merged))))
        for one in merged:
            one.encoded.clear()
    return (*groups, *turns)


def resume(saved: bytes | None, entries: Sequence[HistoryEntry]) -> AgentState | None:
    """Return stored progress after the conversation's history; raises AgentError when it is unreadable.

    Bytes of another agent (a conversation may change hands) count as none.
    """
    try:
        progress = history.decode_progress(saved)
    except UnreadableHistory as error:
        raise AgentError(str(error)) from error
    if progress is None:
        return None
    earlier = Earlier() if progress.entry.replaces else initial_state(entries).earlier
    try:
        return _resumed(progress, earlier)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable() from error


def _resumed(progress: TurnProgress, earlier: Earlier) -> AgentState:
    """Return the state that progress holds; raises an error of the kinds that `resume` names."""
    state: Mapping[str, Any] = progress.state
    conversation = state.get("conversation") or {}
    used, requests = conversation.get("usage") or {}, conversation.get("deferred_tool_requests")
    return AgentState(
        messages=[*earlier.messages, *stored.check_messages(list(progress.entry.messages))],
        usage=TurnUsage(**{name: int(used.get(name) or 0) for name in asdict(TurnUsage())}),
        waiting=list(requests["approvals"]) if requests else None,
        notes=list(progress.entry.notes),
        last_call=str(state.get("last_call") or ""),
        repeats=int(state.get("repeats") or 0),
        received=int(state.get("heard") or 0),
        earlier=earlier,
        replaces=progress.entry.replaces,
    )


def _parse(entry: HistoryEntry) -> _ParsedEntry:
    parsed: _ParsedEntry | None = entry.derived.get(_PARSED)
    if parsed is None:
        try:
            messages = stored.repaired(stored.check_messages(list(entry.messages)))
        except ValueError as error:
            raise _unreadable() from error
        tokens = compaction.estimate_tokens(messages)
        parsed = entry.derived[_PARSED] = _ParsedEntry(turn=EarlierTurn(messages=messages), tokens=tokens)
    return parsed


def _unreadable() -> AgentError:
    return AgentError("This conversation's stored history cannot be read: start a new conversation.")


def _without_instructions(message: ChatMessage) -> ChatMessage:
    """Return a message without the instructions: every run adds them again."""
    if message.get("instructions") is None:
        return message
    changed = message.copy()
    del changed["instructions"]
    return changed
