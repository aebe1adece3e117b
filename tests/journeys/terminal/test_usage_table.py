"""`dovecote usage`: what the account used, by the names of its agents."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from fake_gateway import FakeGateway

USED = {"requests": 3, "input_tokens": 30, "output_tokens": 15, "sandbox_seconds": 1.5, "cost": 0.25}
ENDS = {"period": "day", "reserved": 0.0, "ends_at": "2030-01-01T00:00:00Z"}


def test_the_table_names_agents_and_shows_whole_numbers(
    run: Callable[..., Result], gateway: FakeGateway
) -> None:
    """A budget of an agent has the agent's name too; only money has decimals."""
    usage = {
        "total": USED,
        "agents": {"agt_1": USED, "agt_deleted": USED},
        "parts": [],
        "budget": {"tokens": 0, "day": {"tokens": 4000, "cost": 2.5}},
        "budgets": [
            {**ENDS, "owner": "", "kind": "cost", "used": 0.25, "limit": 2.5},
            {**ENDS, "owner": "agt_1", "kind": "tokens", "used": 45.0, "limit": 4000.0},
            {**ENDS, "owner": "telegram:7", "kind": "requests", "used": 3.0, "limit": 9.0},
        ],
    }
    gateway.responses["GET", "/accounts/me/usage"] = (200, usage)
    gateway.lists["/accounts/me/agents"] = [{"id": "agt_1", "name": "ada"}]
    words = ("usage", "--url", gateway.url, "--key", "dvk_x")
    shown = [line.split() for line in run(*words).stdout.splitlines()]
    assert [line[0] for line in shown[1:4]] == ["total", "ada", "agt_deleted"]
    assert [line[:6] for line in shown[-3:]] == [
        ["account", "day", "cost", "0.25", "0.0", "2.5"],
        ["ada", "day", "tokens", "45", "0", "4000"],
        ["telegram:7", "day", "requests", "3", "0", "9"],
    ]
    assert json.loads(run(*words, "--json").stdout) == usage
