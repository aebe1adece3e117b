"""Waits that a platform asks for are numbers of others: bounded before anybody waits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.errors import translate_error as discord_error
from channels.errors import MAX_WAIT_SECONDS, RateLimited, parse_wait
from channels.inbox.errors import rate_limit
from channels.slack.session import retry_after as slack_wait
from channels.telegram.errors import BotApiError, translate_error

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers())
)


@given(ODD)
def test_any_value_is_a_wait_of_an_hour_at_most(value: object) -> None:
    """Whatever a platform writes there."""
    assert 0 <= parse_wait(value) <= MAX_WAIT_SECONDS


@pytest.mark.parametrize("value", [10**400, float("inf"), "1e400", "9" * 500])
def test_a_huge_number_is_an_hour_or_no_wait(value: object) -> None:
    """An integer of JSON may be larger than any float."""
    assert parse_wait(value) in {0.0, MAX_WAIT_SECONDS}


@pytest.mark.parametrize("wait", [10**400, float("inf"), 10**9])
def test_no_platform_stops_its_channel_for_longer(wait: float) -> None:
    """Each adapter translates its refusal; the error of the port bounds what it is given."""
    refused = BotApiError(429, {"parameters": {"retry_after": wait}})
    found = [
        translate_error(refused, method="sendMessage"),
        discord_error(429, {}, json.dumps({"retry_after": wait}).encode(), name="send"),
        RateLimited(slack_wait({"Retry-After": str(wait)})),
        RateLimited(wait),
    ]
    assert all(isinstance(one, RateLimited) and 0 <= one.retry_after <= MAX_WAIT_SECONDS for one in found)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("7.5", 7.5),
        ("0", 1.0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", MAX_WAIT_SECONDS),
        ("soon", 60.0),
        ("", 60.0),
    ],
)
def test_a_header_names_its_wait_by_a_number_or_a_date(text: str, wait: float) -> None:
    """RFC 9110 allows both; a proxy before a platform may use either."""
    found = rate_limit(429, {"Retry-After": text}, 60.0)
    assert found is not None
    assert found.retry_after == wait
    assert slack_wait({"Retry-After": text}) == (30.0 if wait in {1.0, 60.0} else wait)


def test_a_refusal_with_a_date_to_wait_for_is_a_rate_limit() -> None:
    """GitHub's secondary limits have the status 403: as another refusal they ended the delivery."""
    assert rate_limit(403, {"Retry-After": "Thu, 01 Jan 2099 00:00:00 GMT"}, 60.0) is not None
    assert rate_limit(403, {"Retry-After": "soon"}, 60.0) is None
