"""Request models accept or refuse any JSON; a value of the wrong type never raises another error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

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
