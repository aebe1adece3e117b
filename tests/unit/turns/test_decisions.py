"""People's decisions as the agent gets them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.conversations.approvals import MAX_DECIDER, decisions_by_call
from gateway.store.turns.approvals import Approval

KEY = "key_01m8p909xgy6ygbbhxgdq6mszv"


def decided(name: str | None) -> Approval:
    """Return an approval that was denied by a key, or a person, of this name."""
    about: dict[str, Any] = {
        "id": "apr_1",
        "account": "acc_1",
        "conversation": "cnv_1",
        "turn": "trn_1",
        "call": "c1",
    }
    called: dict[str, Any] = {
        "tool": "bash",
        "command": "ls",
        "digest": "d",
        "state": "denied",
        "decided_by": KEY,
    }
    return Approval(
        **about, **called, args={"command": "ls"}, decided_name=name, created_at=datetime.now(UTC)
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Ada", "Ada"),
        ("laptop of\n Ada", "laptop of Ada"),
        ("a" * 200, "a" * MAX_DECIDER),
        (" ", KEY),
        (None, KEY),
    ],
)
def test_the_agent_gets_the_name_of_who_decided(name: str | None, shown: str) -> None:
    """A name is on one line and short; without one it is the id."""
    decision = decisions_by_call([decided(name)])["c1"]
    assert (decision.approved, decision.by) == (False, shown)
