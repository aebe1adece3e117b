"""The model of the group's story: it has only what the gateway sends it, so a lost context shows."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from openai_server import ScriptedTurn, ToolCall, last_text

WISH = "I want everything green."
ORDER = "paint the fence as she likes it"
FINISHES = ("Matt", "Glossy")
BEGUN = "The painter has begun."
REMINDER = "let the fence dry"
REPORT = "It is done: fence-green-Glossy"
GATE = "go"
"""The file for which the job waits in its workspace."""

PRIVATE_NOTE = "Carol may not eat peanuts"
PRIVATE_REQUEST = f"remember: {PRIVATE_NOTE}"
PRIVATE_QUESTION = "what do you know of me"
NOTHING = "I have no note."

_FRAME = re.compile(r"<message-(\w+) (\{.*?\})>\n(.*)\n</message-\1>", re.DOTALL)
_WISH = re.compile(r"<earlier-(\w+) (\{.*?\})>\nI want everything (\w+)\.\n</earlier-\1>")
_COLOUR = re.compile(r"I want everything (\w+)\.")
_NOTE = re.compile(r"<notes>\n(.*?)\n</notes>", re.DOTALL)
_JOB = "A background job"


def question_of(asker: str, wisher: str) -> str:
    """Return the question that the model asks if its context has the asker and the wish."""
    return f"{asker} asks, and {wisher} wants green. Which finish?"


class GroupModel:
    """Plays the story; `reminder_after` are the seconds after which it wants to be reminded."""

    def __init__(self, *, reminder_after: float = 2.0) -> None:
        self._reminder_after = timedelta(seconds=reminder_after)

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        text = last_text(body)
        if body["messages"][-1]["role"] == "tool":
            return self._go_on(body, text)
        if text.startswith(_JOB):
            found = re.search(r"fence-\w+-\w+", text)
            return _say(f"It is done: {found.group() if found else 'nothing'}")
        asker, said = _message(text)
        if ORDER in said:
            return _ask(body, asker, text)
        if PRIVATE_REQUEST in said:
            return ScriptedTurn(calls=[ToolCall(name="memory_write", args={"text": PRIVATE_NOTE})])
        if PRIVATE_QUESTION in said:
            return _say(_notes(body) or NOTHING)
        return _say("Noted.")

    def _go_on(self, body: dict[str, Any], result: str) -> ScriptedTurn:
        called = _last_called(body)
        if called == ["memory_write"]:
            return _say("I keep that to myself.")
        if called != ["ask_person"]:
            return _say(BEGUN)
        colour = _COLOUR.search(json.dumps(body["messages"]))
        work = f"fe''nce-{colour[1] if colour else 'unknown'}-{result}"
        job = {"command": f"while [ ! -e {GATE} ]; do sleep 0.1; done; echo {work}", "background": True}
        due = (datetime.now(UTC) + self._reminder_after).isoformat()
        reminder = {"kind": "reminder", "text": REMINDER, "at": due}
        calls = [ToolCall(name="bash", args=job), ToolCall(name="schedule_create", args=reminder)]
        return ScriptedTurn(calls=calls)


def _ask(body: dict[str, Any], asker: str, text: str) -> ScriptedTurn:
    wish = _WISH.search(text)
    wisher = json.loads(wish[2])["id"] if wish else ""
    if not wisher and _COLOUR.search(json.dumps(body["messages"][:-1])):
        wisher = "somebody"  # in a conversation without a room, where people have no names
    if not wisher:
        return _say("Nobody told me a wish.")
    asked = {"question": question_of(asker, wisher), "choices": list(FINISHES)}
    return ScriptedTurn(calls=[ToolCall(name="ask_person", args=asked)])


def _say(text: str) -> ScriptedTurn:
    return ScriptedTurn(text=text, pieces=1)


def _message(text: str) -> tuple[str, str]:
    """Return the id of a message's author and what it says; without a frame the author is `somebody`."""
    found = _FRAME.search(text)
    return (json.loads(found[2])["id"], found[3]) if found else ("somebody", text)


def _notes(body: dict[str, Any]) -> str:
    """Return the texts of the notes in the instructions."""
    instructions = str(body["messages"][0]["content"])
    found = _NOTE.search(instructions)
    return "; ".join(json.loads(line)["text"] for line in found[1].splitlines()) if found else ""


def _last_called(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools that the newest answer of the model called."""
    calls = [one["tool_calls"] for one in body["messages"] if one.get("tool_calls")]
    return [call["function"]["name"] for call in calls[-1]]
