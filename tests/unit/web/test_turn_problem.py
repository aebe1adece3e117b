"""The problem of a failed turn at the OpenAI endpoints is one sentence that ends with the turn's address."""

from __future__ import annotations

import pytest

from gateway.web.compat.ask import ANSWER_TIMEOUT, SubmittedTurn, answer_timeout


@pytest.mark.parametrize("reason", ["the budget is used up", "the budget is used up."])
def test_a_reason_that_is_a_sentence_is_joined_to_the_address(reason: str) -> None:
    """Its full stop is left out."""
    turn = SubmittedTurn(turn="trn_1", conversation="cnv_1", agent="default", after=0, created=0)
    assert turn.problem(424, reason).detail == "the budget is used up; the turn is at /status/trn_1"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, ANSWER_TIMEOUT),
        ({"x-stainless-read-timeout": "600"}, ANSWER_TIMEOUT),
        ({"x-stainless-read-timeout": "60.0"}, 55.0),
        ({"x-stainless-timeout": "3"}, 2.7),
        ({"x-stainless-timeout": "0"}, ANSWER_TIMEOUT),
        ({"x-stainless-read-timeout": "nan"}, ANSWER_TIMEOUT),
        ({"x-stainless-read-timeout": "soon"}, ANSWER_TIMEOUT),
    ],
)
def test_a_request_waits_less_than_its_client(headers: dict[str, str], seconds: float) -> None:
    """The client gets the reason of a late answer instead of an end of its own time."""
    assert answer_timeout(headers) == pytest.approx(seconds)
