"""A conversation's history: one entry for each turn, and the encoding of entries and of a turn's progress.

The encoding is the line `dovecote-turn/1` and then JSON: the messages and notes of one turn, and in saved
progress the agent's own state beside them. Earlier versions stored the whole conversation after the line
`dovecote-model/1`. Such bytes are read as an entry that replaces all earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT_PREFIX = b"dovecote-turn/"
FORMAT_VERSION = b"1"
WHOLE_PREFIX = b"dovecote-model/"
WHOLE_VERSION = b"1"

StoredMessage = Mapping[str, Any]
"""A message as JSON, in the form of pydantic-ai's `ModelMessage` (`kind`, `parts`)."""


class UnreadableHistory(Exception):
    """A stored history is damaged or has a newer format; the message is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistoryEntry:
    """What one turn adds to its conversation's history; neither it nor its messages are ever changed.

    An agent may keep in `derived` what it derived from an entry, under a name of its own.
    `notes` are facts that compaction keeps verbatim. An entry that `replaces` all earlier ones contains the
    whole conversation, as after a compaction. An entry that `undoes` a number of entries takes the last ones
    before it out of the history.
    """

    messages: tuple[StoredMessage, ...]
    notes: tuple[str, ...] = ()
    replaces: bool = False
    undoes: int = 0
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProgress:
    """What an unfinished turn adds to the history so far, and its agent's own state as JSON."""

    entry: HistoryEntry
    state: Mapping[str, Any]


def encode_entry(entry: HistoryEntry) -> bytes:
    """Return an entry as bytes."""
    return _encode(entry, {"undoes": entry.undoes} if entry.undoes else {})


def encode_progress(progress: TurnProgress) -> bytes:
    """Return a turn's progress as bytes, which `decode_entry` reads too."""
    return _encode(progress.entry, {"state": progress.state})


def _encode(entry: HistoryEntry, more: Mapping[str, Any]) -> bytes:
    content = {"messages": entry.messages, "notes": entry.notes, "replaces": entry.replaces, **more}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return FORMAT_PREFIX + FORMAT_VERSION + b"\n" + text.encode("utf-8", "surrogatepass")


def decode_entry(stored: bytes | None) -> HistoryEntry | None:
    """Return a stored entry; see `decode_progress`."""
    progress = decode_progress(stored)
    return None if progress is None else progress.entry


def decode_progress(stored: bytes | None) -> TurnProgress | None:
    """Return stored progress, or None for bytes without this format; raises UnreadableHistory."""
    if stored is None:
        return None
    if stored.startswith(WHOLE_PREFIX):
        return _whole_conversation(_read(stored, WHOLE_PREFIX, WHOLE_VERSION))
    if stored.startswith(FORMAT_PREFIX):
        content = _read(stored, FORMAT_PREFIX, FORMAT_VERSION)
        return _progress(content, replaces=bool(content.get("replaces")), state=content.get("state", {}))
    return None


def _read(stored: bytes, prefix: bytes, known: bytes) -> Mapping[str, Any]:
    version, _, body = stored.removeprefix(prefix).partition(b"\n")
    if version != known:
        shown = version[:20].decode(errors="replace")
        raise UnreadableHistory(
            f"This conversation's history was written in version {shown} of its format and this gateway "
            f"reads version {known.decode()}: update the gateway, or start a new conversation."
        )
    try:
        content = json.loads(body)
    except ValueError as error:
        raise _damaged() from error
    if not isinstance(content, dict):
        raise _damaged()
    return content


def _whole_conversation(content: Mapping[str, Any]) -> TurnProgress:
    conversation = content.get("conversation")
    if not isinstance(conversation, dict):
        raise _damaged()
    state = {name: value for name, value in content.items() if name not in {"conversation", "notes"}}
    state["conversation"] = {name: value for name, value in conversation.items() if name != "messages"}
    messages = {"messages": conversation.get("messages", []), "notes": content.get("notes", [])}
    return _progress(messages, replaces=True, state=state)


def _progress(content: Mapping[str, Any], *, replaces: bool, state: Mapping[str, Any]) -> TurnProgress:
    messages, notes = content.get("messages"), content.get("notes", [])
    undoes = content.get("undoes", 0)
    if not isinstance(messages, list) or not isinstance(notes, list) or not isinstance(undoes, int):
        raise _damaged()
    entry = HistoryEntry(
        messages=tuple(messages), notes=tuple(map(str, notes)), replaces=replaces, undoes=max(undoes, 0)
    )
    return TurnProgress(entry=entry, state=state)


def _damaged() -> UnreadableHistory:
    return UnreadableHistory("This conversation's stored history cannot be read: start a new conversation.")


def effective(history: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
    """Return the entries from the last one that replaces those before it."""
    for place in range(len(history) - 1, 0, -1):
        if history[place].replaces:
            return history[place:]
    return history
