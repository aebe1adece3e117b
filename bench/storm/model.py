"""The model of a storm: at random it answers with text, calls tools, or fails."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from openai_server import Fault, ScriptedTurn, ToolCall

TEXT_WEIGHT, CALL_WEIGHT, FAULT_WEIGHT = 50, 45, 5
MAX_CALLS = 3
SLOW_SHARE, SLOW_SECONDS = 0.1, 1.5
LAST_WORDS = "the last words in"
LAST = re.compile(rf"{LAST_WORDS} \w+")
"""A text that the model repeats at once: somebody waits for exactly this answer."""

WORDS = ("tea", "rum", "a dove", "two pigeons", "**bold** and `code`", "a line\nand another")

FAULTS: Sequence[Fault] = tuple(fault for fault in get_args(Fault) if fault not in {"hang", "stall"})
"""Failures that end by themselves; the two others last until the model's time-out."""

ARGUMENTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "bash": (
        {"command": "echo x"},
        {"command": "sleep 0.4; echo x > a.txt"},
        {"command": "sleep 1", "background": True},
        {"command": "mkdir -p outbox; echo x > outbox/x.txt"},
        {"command": "exit 3"},
    ),
    "ask_person": (
        {"question": "Which?"},
        {"question": "Which?", "choices": ["tea", "rum"]},
        {"question": "Which?", "form": {"drink": "what to drink"}},
    ),
    "async_status": ({}, {"resultId": "job_none"}),
    "read": ({"path": "a.txt"},),
    "write": ({"path": "a.txt", "content": "x\n"}, {"path": "b.txt", "content": "y\n"}),
    "edit": ({"path": "a.txt", "old_text": "x", "new_text": "y"},),
    "glob": ({"pattern": "*"},),
    "grep": ({"pattern": "x"},),
    "deliver_file": ({"path": "a.txt"},),
    "memory_write": ({"text": "likes tea"}, {"text": "likes rum", "scope": "account"}),
    "memory_search": ({"query": "tea"},),
    "schedule_create": (
        {"text": "tea", "every": "PT60S"},
        {"text": "tea", "kind": "reminder", "every": "PT60S"},
    ),
    "schedule_list": ({},),
}
"""What the model calls, if the tool is offered: some calls fail, as those of a real model do."""


def storm_model(seed: int) -> Callable[[dict[str, Any]], ScriptedTurn]:
    """Return the script of a model that chooses at random, from a seed."""
    chosen = random.Random(seed)

    def answer(body: dict[str, Any]) -> ScriptedTurn:
        if words := _wanted_words(body):
            return ScriptedTurn(text=words)
        delay = SLOW_SECONDS if chosen.random() < SLOW_SHARE else 0.0
        (kind,) = chosen.choices(("text", "calls", "fault"), (TEXT_WEIGHT, CALL_WEIGHT, FAULT_WEIGHT))
        if kind == "fault":
            return ScriptedTurn(text=chosen.choice(WORDS), fault=chosen.choice(FAULTS), delay=delay)
        calls = _choose_calls(chosen, body) if kind == "calls" else []
        return ScriptedTurn(
            text=chosen.choice(("", *WORDS)) if calls else chosen.choice(WORDS), calls=calls, delay=delay
        )

    return answer


def _wanted_words(body: Mapping[str, Any]) -> str:
    """Return the words that a person asked for and has not got, or an empty text."""
    said = [(one["role"], LAST.search(str(one.get("content")))) for one in body["messages"]]
    found = [(role, asked[0]) for role, asked in said if asked]
    return found[-1][1] if found and found[-1][0] == "user" else ""


def _choose_calls(chosen: random.Random, body: Mapping[str, Any]) -> list[ToolCall]:
    """Return up to three calls of tools that the request offers."""
    offered = [tool["function"]["name"] for tool in body.get("tools", ())]
    known = [name for name in offered if name in ARGUMENTS]
    if not known:
        return []
    names = chosen.choices(known, k=chosen.randint(1, MAX_CALLS))
    return [_call(chosen, name) for name in names]


def _call(chosen: random.Random, name: str) -> ToolCall:
    """Return a call; one of ten has arguments that are no JSON."""
    if chosen.random() < 0.1:
        return ToolCall(name=name, raw='{"command": ')
    return ToolCall(name=name, args=chosen.choice(ARGUMENTS[name]))
