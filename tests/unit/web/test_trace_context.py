"""The caller's `traceparent` is used if it is valid, and ignored otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.api.trace import parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_a_valid_header_is_kept() -> None:
    """Version 00 is taken as it is, and a later version in its form."""
    assert parse_traceparent([VALID]) == VALID
    assert parse_traceparent([f"cc-{TRACE}-{SPAN}-00-what-comes-later"]) == f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [VALID, VALID],
        [VALID.upper()],
        [f"{VALID}-more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE}-{SPAN}"],
        [f" {VALID}"],
        [f"{VALID}\n"],
        [f"cc-{TRACE}-{SPAN}-00-{'x' * 300}"],
    ],
)
def test_an_invalid_header_is_ignored(values: list[str]) -> None:
    """Anything that the specification does not allow gives no parent."""
    assert parse_traceparent(values) is None


@given(st.lists(st.text(alphabet="0123456789abcdefF- \n", max_size=80), max_size=2))
def test_whatever_is_kept_is_valid(values: list[str]) -> None:
    """Every result has the form of version 00 and is a valid header itself."""
    kept = parse_traceparent(values)
    assert kept is None or (len(kept) == len(VALID) and parse_traceparent([kept]) == kept)
