"""The table of methods in the guide of the Python client has the parameters of both classes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from dovecote.client import AsyncDovecote, Dovecote

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "python-client.md"
CALL = re.compile(r"`(\w+)\(([^)`]*)\)`")


def documented() -> dict[str, list[str]]:
    """Return the parameters of each method in the table."""
    table = GUIDE.read_text().partition("## Methods")[2].partition("## Webhooks")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name: arguments.split(", ") for row in rows for name, arguments in CALL.findall(row)}


@pytest.mark.parametrize("client", [Dovecote, AsyncDovecote])
def test_the_guide_shows_which_arguments_have_names(client: type[Dovecote | AsyncDovecote]) -> None:
    """`name=` marks a parameter that is passed by name only; others are positional."""
    found = documented()
    assert {"start_turn", "jobs", "approvals", "events"} <= set(found)
    for method, arguments in found.items():
        parameters = inspect.signature(getattr(client, method)).parameters
        by_name = {name for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
        assert {one.removesuffix("=") for one in arguments if one.endswith("=")} <= by_name, method
        assert len([one for one in arguments if not one.endswith("=")]) == len(parameters) - len(by_name) - 1


def test_the_guide_names_what_starting_a_turn_returns() -> None:
    """It is a value with the id, and no id."""
    assert inspect.signature(Dovecote.start_turn).return_annotation == "StartedTurn"
    assert "returns a `StartedTurn`" in GUIDE.read_text()
