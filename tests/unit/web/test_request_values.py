"""A body with more values than a request needs is refused before it is parsed, and its errors are bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.records.input_problems import MAX_ERRORS, to_problems
from gateway.web.http.problems import HttpProblem
from gateway.web.http.request_body import MAX_VALUES, parse_json
from gateway.web.stream.frames import InvalidFrame, parse


@pytest.mark.parametrize(
    "value",
    [
        ['text, [with] {all} "signs" \\', *[1] * (MAX_VALUES - 2)],
        [[] for _ in range(MAX_VALUES // 2 - 1)],
        {str(number): None for number in range(MAX_VALUES - 1)},
        "a, [b] {c}, " * MAX_VALUES,
        '\\", ' * MAX_VALUES,
        {"data": "=" * 10 * MAX_VALUES, "rest": [True, None, 1.5, {}]},
    ],
    ids=["array", "arrays", "object", "text", "escapes", "file"],
)
def test_bodies_with_few_values_are_parsed(value: Any) -> None:
    """Only what is a value counts, whatever the texts have."""
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" + b"[]," * MAX_VALUES + b"[]]",
        b"[" + b"{}," * MAX_VALUES + b"{}]",
        b"[" + b'"",' * 3 * MAX_VALUES + b'""]',
        b'{"a":[' + b"null," * MAX_VALUES + b'null],"b":"' + b"x" * MAX_VALUES + b'"}',
        b'["\\\\",' + b"1," * MAX_VALUES + b"1]",
    ],
    ids=["numbers", "arrays", "objects", "texts", "nulls", "backslash"],
)
def test_bodies_with_many_values_are_refused(raw: bytes) -> None:
    """Four million numbers stopped the process for half a minute while pydantic refused each of them."""
    with pytest.raises(HttpProblem) as caught:
        parse_json(raw)
    assert caught.value.status == 400
    assert str(MAX_VALUES) in caught.value.detail


def test_frames_with_many_values_are_refused() -> None:
    """A WebSocket frame is read like a body."""
    items = ",".join(["1"] * (MAX_VALUES + 1))
    with pytest.raises(InvalidFrame, match="values"):
        parse(f'{{"type":"send","conversation":"c","text":"t","attachments":[{items}]}}')


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


def test_the_first_errors_of_an_input_are_listed() -> None:
    """Each was compared with all others, so one request with 60,000 unknown keys ended the process."""
    wrong = {f"key{number}": 1 for number in range(20 * MAX_ERRORS)}
    with pytest.raises(ValidationError) as caught:
        _Closed.model_validate(wrong)
    *listed, last = to_problems(caught.value, wrong, _Closed, below="/config")
    assert len(listed) == MAX_ERRORS
    assert (last.pointer, last.detail) == ("/config", f"{19 * MAX_ERRORS} more errors are not listed")
