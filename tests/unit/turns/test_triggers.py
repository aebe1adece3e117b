"""Signed requests: both kinds of signatures, and templates that values cannot leave."""

from __future__ import annotations

import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.signing import BadSignature, new_secret, sign
from gateway.agents.shell import parse_commands
from gateway.schedules.triggers import (
    UNTRUSTED,
    InvalidDelivery,
    delivery_id,
    is_command_with_values,
    parse_body,
    render_template,
    verify_delivery,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BODY = b'{"action": "opened"}'


def hub_headers(secret: str, body: bytes) -> dict[str, str]:
    """Return the headers with which GitHub sends a body."""
    digest = hmac.new(secret.encode(), body, "sha256").hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": "d-1"}


def test_both_kinds_of_signatures_are_accepted() -> None:
    """The secret signs by Standard Webhooks or as GitHub signs, and each kind has its own id."""
    secret = new_secret()
    standard = sign([secret], message_id="msg-1", moment=NOW, body=BODY)
    hub = hub_headers(secret, BODY)
    for headers in (standard, hub):
        verify_delivery(secret, headers, BODY, now=NOW)
    assert (delivery_id(standard), delivery_id(hub)) == ("msg-1", "d-1")


def test_everything_else_is_refused() -> None:
    """Another secret, a changed body, an old request, no signature, and a weaker signature beside it."""
    secret, other = new_secret(), new_secret()
    standard = sign([secret], message_id="msg-1", moment=NOW, body=BODY)
    refused: list[tuple[dict[str, str], bytes, datetime]] = [
        (sign([other], message_id="msg-1", moment=NOW, body=BODY), BODY, NOW),
        (standard, BODY + b" ", NOW),
        (standard | {"webhook-id": "msg-2"}, BODY, NOW),
        (standard, BODY, NOW + timedelta(minutes=6)),
        ({}, BODY, NOW),
        (hub_headers(other, BODY), BODY, NOW),
        (hub_headers(secret, BODY), BODY + b" ", NOW),
        ({"x-hub-signature-256": "sha1=00"}, BODY, NOW),
        (hub_headers(secret, BODY) | {"webhook-signature": "v1,"}, BODY, NOW),
    ]
    for headers, body, now in refused:
        with pytest.raises(BadSignature):
            verify_delivery(secret, headers, body, now=now)


@pytest.mark.parametrize("headers", [{}, {"x-github-delivery": ""}, {"x-github-delivery": "x" * 201}])
def test_a_request_needs_an_id(headers: dict[str, str]) -> None:
    """Without an id of a sensible length a repetition could not be recognised."""
    with pytest.raises(InvalidDelivery):
        delivery_id(headers)


@pytest.mark.parametrize("body", [b"a=1", b"\xff", b"[" * 100_000, b'{"a": NaN}', b"[-Infinity]"])
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    """Forms, other encodings and bodies that nest too deeply are refused."""
    with pytest.raises(InvalidDelivery):
        parse_body(body)


@pytest.mark.parametrize("depth", [200, 201, 950, 955, 960, 965, 970, 1000, 50_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_no_depth_of_a_body_is_an_internal_error(depth: int, opening: bytes, closing: bytes) -> None:
    """A body that can be read but not written as JSON is refused like one that cannot be read."""
    body = opening * depth + b"1" + closing * depth
    if depth == 200:
        assert len(render_template("{{body}}", parse_body(body))) > depth
        return
    with pytest.raises(InvalidDelivery, match="nests deeper"):
        parse_body(body)


def test_fields_are_inserted() -> None:
    """Fields of objects and items of lists are JSON; what is not there is null."""
    payload = {"issue": {"title": "It's <b>", "labels": ["bug"]}, "n": 3}
    template = "Look at {{issue.title}}, {{ issue.labels.0 }}, {{n}}, {{body.n}}, {{missing.1}}"
    text = render_template(template, payload)
    assert text == f'Look at "It\'s \\u003cb\\u003e", "bug", 3, 3, null\n\n{UNTRUSTED}'
    assert render_template("Good morning", payload) == "Good morning"


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_is_one_line_without_brackets(payload: Any) -> None:
    """No value begins a line of its own, nor inserts a placeholder that is replaced in turn."""
    text = render_template("A {{body}} Z", payload)
    first, *rest = text.splitlines()
    assert rest == ["", UNTRUSTED]
    assert "<" not in first
    assert ">" not in first
    assert json.loads(first.removeprefix("A ").removesuffix(" Z")) == payload


@pytest.mark.parametrize("template", ["!echo {{title}}", "  !echo {{title}}", "Deploy:\n!echo {{title}}"])
def test_a_command_in_any_line_takes_no_value_of_a_request(template: str) -> None:
    """The shell would execute a value such as `$(…)`."""
    assert is_command_with_values(template)


LINES = st.lists(
    st.sampled_from(["!echo hi", " !ls", "text", "{{title}}", "say {{body}} now", ""]), max_size=5
)


@given(lines=LINES, title=st.text(max_size=30) | st.just("\n!id"))
def test_no_value_of_a_request_becomes_a_part_of_a_command(lines: list[str], title: str) -> None:
    """The commands of an accepted template are the same whatever a request says."""
    template = "\n".join(lines)
    if not is_command_with_values(template):
        assert parse_commands(render_template(template, {"title": title})) == parse_commands(template)
