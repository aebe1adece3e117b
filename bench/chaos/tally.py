"""Count the results of a chaos run (pure): lost, duplicated and reordered answers, exact event logs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(r"\bt(\d+)x(\d+)\b")
"""A turn's mark, `t<chat>x<number>`, said by the person and, once, by the bot."""

FINAL = ("turn.completed", "turn.failed", "turn.cancelled")


def message_mark(chat: int, number: int) -> str:
    """Return the mark of a chat's message `number`."""
    return f"t{chat}x{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The count of a run."""

    turns: int
    lost: int
    duplicated: int
    reordered: int
    logs: int
    logs_exact: int
    faults: tuple[str, ...] = field(default=())


def answered_turns(texts: Iterable[str], chat: int) -> list[int]:
    """Return the numbers of a chat's turns in the order the bot answered them, repeats included."""
    numbers = []
    for text in texts:
        found = [int(number) for owner, number in TOKEN.findall(text) if int(owner) == chat]
        numbers += found[:1]
    return numbers


def check_chat(asked: int, answered: Sequence[int]) -> tuple[int, int, int]:
    """Return (lost, duplicated, reordered) of one chat that was asked 0 … asked-1."""
    first: list[int] = list(dict.fromkeys(answered))
    lost = asked - len(first)
    reordered = sum(later < earlier for earlier, later in itertools.pairwise(first))
    return lost, len(answered) - len(first), reordered


def check_log(events: Sequence[Mapping[str, Any]], *, turns: int) -> str | None:
    """Return what is wrong with a conversation's event log, or None if it is exact.

    Exact: seq grows, n counts from 1 without a hole, every turn is queued once, answered once and ended
    once, and turns end in the order in which they were queued.
    """
    lasting = [event for event in events if "n" in event]
    if [event["n"] for event in lasting] != list(range(1, len(lasting) + 1)):
        return "n has a hole or a repeat"
    seqs = [event["seq"] for event in events]
    if any(later <= earlier for earlier, later in itertools.pairwise(seqs)):
        return "seq does not grow"
    queued = [event["turn"] for event in lasting if event["type"] == "turn.queued"]
    ended = [event["turn"] for event in lasting if event["type"] in FINAL]
    said = [event.get("turn") for event in lasting if event["type"] == "message.completed"]
    if len(queued) != turns or len(set(queued)) != turns:
        return f"{len(queued)} turns queued, not {turns}"
    if ended != queued:
        return "turns did not end once each, in order"
    if said != queued:
        return "turns were not answered once each, in order"
    return None


def count(
    answers: Mapping[int, Sequence[str]],
    logs: Mapping[int, Sequence[Mapping[str, Any]]],
    *,
    asked: Mapping[int, int],
) -> Tally:
    """Count a whole run from the answers of each chat and the stream of each conversation."""
    lost = duplicated = reordered = exact = 0
    faults: list[str] = []
    for chat, number in asked.items():
        missing, repeated, swapped = check_chat(number, answered_turns(answers.get(chat, ()), chat))
        lost, duplicated, reordered = lost + missing, duplicated + repeated, reordered + swapped
        wrong = check_log(logs.get(chat, ()), turns=number)
        exact += wrong is None
        if wrong is not None:
            faults.append(f"chat {chat}: {wrong}")
    return Tally(
        turns=sum(asked.values()),
        lost=lost,
        duplicated=duplicated,
        reordered=reordered,
        logs=len(asked),
        logs_exact=exact,
        faults=tuple(faults),
    )
