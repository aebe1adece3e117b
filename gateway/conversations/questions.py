"""Questions: approvals that are answered instead of decided (pure).

`ask_person` asks people. A question's arguments are `question`, and either `choices` or `form` or neither.
An answer is a text: one of the choices, the fields of the form as JSON, or any text.

A call of a client's own tool waits in the same way: the client executes it, and its answer is the result.
So does a sign-in to an MCP server: the browser that comes back from it answers the question.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from delivery.events.event import Event, EventType
from gateway.agents.client_request import ClientToolSpec
from gateway.agents.port import PendingToolCall
from gateway.conversations.approval_question import CallTarget, render_call, render_question
from gateway.conversations.message_ids import approval_event_id
from gateway.conversations.text_change import TextChange
from gateway.store.turns.approvals import Approval

TOOL = "ask_person"
"""The name of the tool; its approvals are questions."""

CLIENT_TOOL = "client tool"
"""The tool of approvals that wait for a client's result; as it has a space, no tool has this name.

The arguments are `name`, `arguments`, and the call's place among those of the pause: `index` and `count`.
"""

SIGN_IN = "sign in"
"""The tool of questions that wait until a person has signed in to an MCP server; no tool has this name.

The arguments are `question`, `server`, `agent`, `person`, and `url` if only that person reads the question.
"""

ANSWERED = "answered"
"""The state of a question that was answered."""

_EMOJI_STYLES = "\ufe0e\ufe0f"
MAX_QUESTION = 4_000
MAX_CHOICES = 20
MAX_CHOICE = 200
MAX_FIELDS = 20
MAX_ANSWER = 4_000
MAX_CLIENT_RESULT = 200_000
"""Characters of the result of a client's tool."""


class InvalidAnswer(ValueError):
    """The answer does not fit the question; the message says what fits."""


class InvalidQuestion(ValueError):
    """The arguments of a question cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonQuestion:
    """What a person is asked; `form` has the fields to fill in and what they mean."""

    text: str
    choices: tuple[str, ...] = ()
    form: tuple[tuple[str, str], ...] = ()

    def to_event(self) -> dict[str, Any]:
        """Return the question as events and HTTP show it."""
        found: dict[str, Any] = {"question": self.text}
        if self.choices:
            found["choices"] = list(self.choices)
        if self.form:
            found["form"] = dict(self.form)
        return found


def is_question(tool: str) -> bool:
    """Return whether the approvals of a tool are questions."""
    return tool in {TOOL, CLIENT_TOOL, SIGN_IN}


def client_calls(
    calls: Sequence[PendingToolCall], tools: Mapping[str, ClientToolSpec]
) -> list[PendingToolCall]:
    """Return calls with those of a client's tools as calls of `CLIENT_TOOL`."""
    ours = [call.id for call in calls if call.name in tools]
    return [
        replace(
            call,
            name=CLIENT_TOOL,
            args={
                "name": tools[call.name].client_name,
                "arguments": dict(call.args),
                "index": ours.index(call.id),
                "count": len(ours),
                **tools[call.name].call_fields,
            },
        )
        if call.id in ours
        else call
        for call in calls
    ]


def describe_question(tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as events and HTTP show it; raises InvalidQuestion."""
    if tool == CLIENT_TOOL:
        return {"question": _render_client_call(args), "client_tool": dict(args)}
    if tool == SIGN_IN:
        shown = {name: args[name] for name in ("server", "url") if name in args}
        return {"question": args["question"], "sign_in": shown}
    return parse_question(args).to_event()


def _render_client_call(args: Mapping[str, Any]) -> str:
    arguments = json.dumps(args["arguments"], ensure_ascii=False)
    return f"The client's tool {args['name']} was called; its result is the answer. Arguments: {arguments}"


def parse_question(args: Mapping[str, Any]) -> PersonQuestion:
    """Return the question that a call asks; raises InvalidQuestion."""
    text, choices, form = args.get("question"), args.get("choices") or [], args.get("form") or {}
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_QUESTION:
        raise InvalidQuestion(f"question must be a text of 1 to {MAX_QUESTION} characters")
    if choices and form:
        raise InvalidQuestion("give choices or form, not both")
    return PersonQuestion(text=text, choices=_parse_choices(choices), form=_parse_form(form))


def _parse_choices(choices: object) -> tuple[str, ...]:
    if not isinstance(choices, list) or len(choices) > MAX_CHOICES:
        raise InvalidQuestion(f"choices must be a list of at most {MAX_CHOICES} texts")
    if not all(isinstance(one, str) and one.strip() and len(one) <= MAX_CHOICE for one in choices):
        raise InvalidQuestion(f"each choice must be a text of 1 to {MAX_CHOICE} characters")
    plain = [" ".join(one.split()) for one in choices]
    if len({one.casefold() for one in plain}) < len(plain):
        raise InvalidQuestion("choices must differ from each other")
    return tuple(plain)


def _parse_form(form: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(form, Mapping) or len(form) > MAX_FIELDS:
        raise InvalidQuestion(f"form must be an object of at most {MAX_FIELDS} fields")
    fields = [(name, text) for name, text in form.items() if isinstance(name, str) and isinstance(text, str)]
    if len(fields) < len(form) or not all(
        name.strip() and len(name + text) <= MAX_CHOICE for name, text in fields
    ):
        raise InvalidQuestion("form must give each field's name a short text that says what it means")
    return tuple((" ".join(name.split()), " ".join(text.split())) for name, text in fields)


def parse_answer(tool: str, args: Mapping[str, Any], given: str | Mapping[str, str]) -> str:
    """Return the answer as it is stored and given to the agent; raises InvalidAnswer."""
    if tool == CLIENT_TOOL:
        return _parse_client_result(given)
    question = parse_question(args)
    if question.form:
        return _parse_fields(question, given)
    if not isinstance(given, str) or not given.strip() or len(given) > MAX_ANSWER:
        raise InvalidAnswer(f"the answer must be a text of 1 to {MAX_ANSWER} characters")
    return _choose(question.choices, given.strip()) if question.choices else given.strip()


def _parse_client_result(given: str | Mapping[str, str]) -> str:
    text = given if isinstance(given, str) else json.dumps(dict(given), ensure_ascii=False)
    if len(text) > MAX_CLIENT_RESULT:
        raise InvalidAnswer(f"the result must have at most {MAX_CLIENT_RESULT} characters")
    return text


def _choose(choices: Sequence[str], given: str) -> str:
    """Return the choice that an answer names by its text or its number.

    What people do not see or type makes no difference, unless choices differ by nothing else.
    """
    for form in (str, _typed_form):
        found = [choice for choice in choices if form(choice) == form(given)]
        if found:
            return found[0]
    if (
        given.isascii()
        and given.isdigit()
        and len(given) < len(str(MAX_ANSWER))
        and 1 <= int(given) <= len(choices)
    ):
        return choices[int(given) - 1]
    shown = "; ".join(f"{number}. {choice}" for number, choice in enumerate(choices, start=1))
    raise InvalidAnswer(f"the answer must be one of the choices or its number: {shown}")


def _typed_form(text: str) -> str:
    """Return a text without marks of direction, joiners and emoji styles, and with one case and spacing."""
    shown = "".join(one for one in unicodedata.normalize("NFKC", text) if not _is_invisible(one))
    return " ".join(shown.split()).casefold()


def _is_invisible(one: str) -> bool:
    return unicodedata.category(one) == "Cf" or one in _EMOJI_STYLES


def _parse_fields(question: PersonQuestion, given: str | Mapping[str, str]) -> str:
    names = [name for name, _text in question.form]
    values = dict(given) if isinstance(given, Mapping) else _parse_lines(given)
    found = {name: values.get(name, "").strip() for name in names}
    missing = [name for name, value in found.items() if not value]
    unknown = sorted(values.keys() - set(names))
    if missing or unknown:
        problem = f"{missing[0]} is missing" if missing else f"there is no field {unknown[0]!r}"
        form = "; ".join(f"{name}: …" for name in names)
        raise InvalidAnswer(f"{problem}; answer with every field, such as: {form}")
    answer = json.dumps(found, ensure_ascii=False)
    if len(answer) > MAX_ANSWER:
        raise InvalidAnswer(f"the answer must have at most {MAX_ANSWER} characters")
    return answer


def _parse_lines(text: str) -> dict[str, str]:
    """Return the fields of a text such as `name: Ann; size: M`, or of one line for each field."""
    lines = [line for part in text.split("\n") for line in part.split(";")]
    pairs = (line.partition(":") for line in lines if line.strip())
    return {" ".join(name.split()): value.strip() for name, _colon, value in pairs}


def is_answered_so(approval: Approval, answer: str, files: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a question has this answer, with files of these names and bytes."""
    stored = [(one["name"], one["sha256"]) for one in approval.files or ()]
    given = [(one["name"], one["sha256"]) for one in files]
    return (approval.state, approval.comment, stored) == (ANSWERED, answer, given)


def render_request(call: PendingToolCall, target: CallTarget, change: TextChange | None) -> str:
    """Return the text that people read before they decide or answer."""
    if is_question(call.name):
        return str(describe_question(call.name, call.args)["question"])
    return render_question(call.name, call.args, target, change)


def expired_event(approval: Approval, ended: str) -> Event:
    """Return the event that takes a request back, because its turn has `ended` in this state."""
    asked = {"approval": approval.id, "ended": ended, "asked": approval_event_id(approval.id)}
    if is_question(approval.tool):
        kind, call = EventType.QUESTION_EXPIRED, {"question": approval.command}
    else:
        kind, call = EventType.APPROVAL_EXPIRED, {"command": render_call(approval.tool, approval.args)}
    return Event.now(kind, approval.conversation, {**asked, **call}, turn=approval.turn)


def requested_event(approval: Approval, reason: str) -> Event:
    """Return the event that asks people to decide or to answer."""
    kind = EventType.QUESTION_REQUESTED
    data: dict[str, Any] = {"approval": approval.id}
    if is_question(approval.tool):
        data |= describe_question(approval.tool, approval.args)
    else:
        kind = EventType.APPROVAL_REQUESTED
        data |= {
            "tool": approval.tool,
            "args": dict(approval.args),
            "command": render_call(approval.tool, approval.args),
            "question": approval.command,
            **({"reason": reason} if reason else {}),
        }
    return Event.now(
        kind, approval.conversation, data, turn=approval.turn, event_id=approval_event_id(approval.id)
    )
