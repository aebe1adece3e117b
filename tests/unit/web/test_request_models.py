"""Request models accept or refuse any JSON; a value of the wrong type never raises another error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gateway.records.input_problems import to_problems
from gateway.web.compat.agui.requests import RunAgentInput
from gateway.web.compat.openai_requests import ChatCompletionCreate
from gateway.web.routes import ROUTES
from gateway.web.stream.frames import InvalidFrame, ProtocolError, parse

MODELS = sorted({route.request_model for route in ROUTES if route.request_model is not None}, key=repr)
FRAMES = ("auth", "subscribe", "unsubscribe", "send", "approve", "cancel", "ping")
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "text",
    "",
    [],
    ["user"],
    [[]],
    {},
    {"type": ["text"]},
    {"role": {}},
)
DEPTH = 6
INTERNAL_WORDS = re.compile(
    r"[Tt]uple|[Dd]ict|\blist\b|instance|[Ii]nput should|None|True|False|valid (string|integer)"
)
"""Words of the validator and of Python, which mean nothing to a client."""


def wrong_values(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = DEPTH
) -> Iterator[Any]:
    """Yield values of every type, at the place of a schema and of each place below it."""
    yield from VALUES
    if depth == 0:
        return
    if "$ref" in schema:
        yield from wrong_values(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth - 1)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from wrong_values(option, definitions, depth - 1)
    for item in (*schema.get("prefixItems", ()), schema.get("items")):
        if isinstance(item, Mapping):
            yield from ([value] for value in wrong_values(item, definitions, depth - 1))
    for name, field in schema.get("properties", {}).items():
        yield from ({name: value} for value in wrong_values(field, definitions, depth - 1))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_value_of_any_type_is_accepted_or_refused(model: type[BaseModel]) -> None:
    """Any JSON at any place of a body is valid or a ValidationError, so that it is never a 500."""
    schema = model.model_json_schema()
    for value in wrong_values(schema, schema.get("$defs", {})):
        try:
            model.model_validate(value)
        except ValidationError:
            continue


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_problems_name_the_clients_fields_in_words_of_json(model: type[BaseModel]) -> None:
    """Every pointer leads to a value of the client or to a missing key, once, and the text is about JSON."""
    schema = model.model_json_schema()
    for value in wrong_values(schema, schema.get("$defs", {})):
        if not isinstance(value, dict):
            continue
        try:
            model.model_validate(value)
        except ValidationError as error:
            found = to_problems(error, value, model)
            pointers = [problem.pointer for problem in found]
            assert pointers
            assert len(set(pointers)) == len(pointers)
            assert all(_leads_to_a_key(value, pointer) for pointer in pointers), (value, pointers)
            assert [problem.detail for problem in found if INTERNAL_WORDS.search(problem.detail)] == []


def _leads_to_a_key(value: Any, pointer: str) -> bool:
    """Return whether a pointer leads to a place in the value, or to a key that an object could have."""
    for key in pointer.split("/")[1:]:
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value.get(key)
        else:
            return False
    return True


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "messages", "expected"),
    [
        (ChatCompletionCreate, "hi", {"/messages": 'must be an array (given: "hi")'}),
        (ChatCompletionCreate, {}, {"/messages": "must be an array"}),
        (ChatCompletionCreate, [], {"/messages": "must have at least 1 item"}),
        (ChatCompletionCreate, ["a"], {"/messages/0": 'must be an object (given: "a")'}),
        (
            ChatCompletionCreate,
            [{**USER, "content": 5}],
            {"/messages/0/content": "must be a string or an array (given: 5)"},
        ),
        (
            ChatCompletionCreate,
            [USER, {**USER, "content": [5]}],
            {"/messages/1/content/0": "must be an object (given: 5)"},
        ),
        (ChatCompletionCreate, [USER] * 5001, {"/messages": "must have at most 5000 items"}),
        (RunAgentInput, None, {"/messages": "must be an array (given: null)"}),
        (
            RunAgentInput,
            [{"role": "user", "content": {}}],
            {"/messages/0/content": "must be a string or an array"},
        ),
    ],
)
def test_a_wrong_message_is_one_problem(
    model: type[BaseModel], messages: Any, expected: Mapping[str, str]
) -> None:
    """A message list of the wrong type is reported once, without the consequences of the first problem."""
    given = {"model": "a", "threadId": "t", "runId": "r", "messages": messages}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    assert {one.pointer: one.detail for one in to_problems(caught.value, given, model)} == expected


class Guarded(BaseModel):
    """A model whose values are secret by their names, or contain a password."""

    headers: dict[str, int] = {}
    env: dict[str, int] = {}
    client_secret: int = 0
    address: int = 0


def test_no_problem_repeats_a_secret() -> None:
    """A header, a variable, a secret and a password in a URL are not in the answer to a wrong request."""
    given = {
        "headers": {"Authorization": "Bearer canary"},
        "env": {"MODE": "canary"},
        "client_secret": "canary",
        "address": "https://ada:canary@example.org",
        "adress": "canary",
    }
    with pytest.raises(ValidationError) as caught:
        Guarded.model_validate(given, strict=True, extra="forbid")
    problems = to_problems(caught.value, given, Guarded)
    assert len(problems) == 5
    assert "canary" not in str(problems)
    assert "***@example.org" in str(problems)


def test_a_wrong_frame_is_explained_in_words_of_json() -> None:
    """The error of a WebSocket frame names its own field, and never repeats a key."""
    with pytest.raises(ProtocolError) as caught:
        parse(json.dumps({"type": "send", "conversation": "c", "text": "t", "attachments": "x", "id": "1"}))
    assert str(caught.value).endswith('attachments: must be an array (given: "x")')
    with pytest.raises(ProtocolError) as caught:
        parse(json.dumps({"type": "auth", "key": "secret" * 400}))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_of_any_shape_is_accepted_or_refused(kind: str) -> None:
    """Any JSON in a WebSocket frame is valid or one of the two errors that a client receives."""
    names = (
        "key",
        "conversation",
        "after",
        "epoch",
        "deltas",
        "batch",
        "text",
        "id",
        "attachments",
        "decision",
    )
    for name in names:
        for value in VALUES:
            try:
                parse(json.dumps({"type": kind, name: value}))
            except (InvalidFrame, ProtocolError):
                continue
