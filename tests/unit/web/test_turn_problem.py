"""The problem of a failed turn at the OpenAI endpoints is one sentence that ends with the turn's address."""

from __future__ import annotations

import pytest

from gateway.web.compat.ask import SubmittedTurn


@pytest.mark.parametrize("reason", ["the budget is used up", "the budget is used up."])
def test_a_reason_that_is_a_sentence_is_joined_to_the_address(reason: str) -> None:
    """Its full stop is left out."""
    turn = SubmittedTurn(turn="trn_1", conversation="cnv_1", agent="default", after=0, created=0)
    assert turn.problem(424, reason).detail == "the budget is used up; the turn is at /status/trn_1"
