"""Separate and restore the secrets of configs, and report wrong values."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import BaseModel, Field, SecretStr, ValidationError

from gateway.records.errors import InvalidRecord, json_pointer
from gateway.records.input_problems import to_problems
from gateway.records.kinds import MAX_CHARACTERS, MAX_VALUES, validate
from gateway.records.patches import extract_secrets, insert_secrets, merge_patch

LEAVES = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.text(max_size=8)
    | some.text(max_size=8).map(SecretStr)
)
TREES = some.dictionaries(
    some.text(max_size=6),
    some.recursive(
        LEAVES,
        lambda inner: (
            some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=6), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)
PLAIN = TREES.map(lambda tree: extract_secrets(tree)[0])


def _clear(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clear(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clear(inner) for inner in value]
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@given(tree=TREES)
def test_secrets_come_apart_and_together_again(tree: dict[str, Any]) -> None:
    """The separated config contains no secret, and restoring puts every secret back in its place."""
    config, secrets = extract_secrets(tree)
    json.dumps(config)
    assert insert_secrets(config, secrets) == _clear(tree)


@given(config=PLAIN)
def test_an_empty_patch_changes_nothing(config: dict[str, Any]) -> None:
    """Merging nothing gives what there was."""
    assert merge_patch(config, {}) == config


@given(config=PLAIN, patch=PLAIN)
def test_merging_twice_is_merging_once(config: dict[str, Any], patch: dict[str, Any]) -> None:
    """A patch that was applied has nothing more to do."""
    once = merge_patch(config, patch)
    assert merge_patch(once, patch) == once


def test_a_patch_sets_nests_and_removes() -> None:
    """Keys are set, objects merged, null removes, lists are replaced."""
    config = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1, 2]}
    patch = {"a": None, "b": {"c": 4, "f": 5}, "e": [9]}
    assert merge_patch(config, patch) == {"b": {"c": 4, "d": 3, "f": 5}, "e": [9]}


def test_a_mask_keeps_what_it_hides() -> None:
    """`***` sent back keeps the stored secret; without a stored one it is an ordinary value."""
    assert merge_patch({"t": "real"}, {"t": "***", "n": "***"}) == {"t": "real", "n": "***"}


@given(parts=some.lists(some.text(), max_size=4))
def test_a_pointer_names_exactly_one_place(parts: list[str]) -> None:
    """Slashes and tildes in keys are escaped, so that the parts stay distinguishable."""
    read = [part.replace("~1", "/").replace("~0", "~") for part in json_pointer(parts).split("/")[1:]]
    assert read == parts


class _Wrong(BaseModel):
    """A model to be given wrong input."""

    number: int = 0
    secret: SecretStr = SecretStr("")


def test_a_problem_shows_what_was_given_unless_it_is_secret() -> None:
    """A wrong plain value is repeated, shortened; a wrong secret never is."""
    wrong = {"number": "x" * 500, "secret": 77_777}
    try:
        _Wrong.model_validate(wrong)
    except ValidationError as error:
        number, secret = to_problems(error, wrong, _Wrong, below="/config")
    assert (number.pointer, secret.pointer) == ("/config/number", "/config/secret")
    assert "xxx" in number.detail
    assert len(number.detail) < 250
    assert "77777" not in secret.detail


class _Part(BaseModel):
    """One of the types of a value."""

    text: Annotated[str, Field(min_length=1)]


class _Message(BaseModel):
    """A model with values of several types."""

    content: Annotated[str, Field(max_length=3)] | list[_Part] | None = None


class _Conversation(BaseModel):
    """A model of models."""

    messages: list[_Message]


@pytest.mark.parametrize(
    ("wrong", "pointers"),
    [
        ({"messages": [{"content": 7}]}, ["/messages/0/content"]),
        (
            {"messages": [{}, {"content": [{"text": ""}]}]},
            ["/messages/1/content/0/text"],
        ),
        ({"messages": [{"content": [{}]}]}, ["/messages/0/content/0/text"]),
        ({}, ["/messages"]),
    ],
)
def test_pointers_name_the_clients_own_keys(wrong: dict[str, Any], pointers: list[str]) -> None:
    """A value that fits none of several types is one problem, and no pointer names a type."""
    with pytest.raises(ValidationError) as caught:
        _Conversation.model_validate(wrong)
    assert [problem.pointer for problem in to_problems(caught.value, wrong, _Conversation)] == pointers


@pytest.mark.parametrize(
    ("config", "pointer", "said"),
    [
        ({"instructions": "x" * (MAX_CHARACTERS + 1)}, "/config", "characters"),
        ({"tools": ["bash"] * MAX_VALUES}, "/config", "keys and values"),
        ({"mcp": {f"server{number}": {} for number in range(MAX_VALUES // 2)}}, "/config", "keys and values"),
    ],
    ids=["text", "list", "keys"],
)
def test_a_config_has_a_limited_size(config: dict[str, Any], pointer: str, said: str) -> None:
    """Patches made a record as large as they liked: each of them, and each turn, took seconds to read it."""
    with pytest.raises(InvalidRecord) as caught:
        validate("agent", {"model": "builtin:shell", **config})
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert said in problem.detail


def test_a_sandbox_has_a_limited_number_of_variables() -> None:
    """More do not fit in the arguments of the program that starts it."""
    variables = {f"NAME{number}": "x" for number in range(1001)}
    with pytest.raises(InvalidRecord) as caught:
        validate("sandbox", {"envVars": variables})
    assert [problem.pointer for problem in caught.value.problems] == ["/config/envVars"]
