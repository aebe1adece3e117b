"""Models and addresses of `[agents.NAME]`: what no turn could use is refused at the start."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.records.rules.agent_models import configured_model_problems

OWN = "http://127.0.0.1:9901/v1"


def _problems(agent: dict[str, Any], **agents: dict[str, Any]) -> tuple[str, ...]:
    return configured_model_problems(Settings.model_validate({"agent": agent, "agents": agents}))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"base_url": "http://127.0.0.1:9999/v1"}, 'agents.help.base_url is "http://127.0.0.1:9999/v1": '),
        ({"model": "anthropic:claude-x"}, 'agents.help.model is "anthropic:claude-x": ANTHROPIC_API_KEY is'),
        ({"fallback": ["google:g"]}, 'agents.help.fallback is "google:g": GOOGLE_API_KEY is not set'),
        ({"model": "entry:missing"}, 'agents.help.model is "entry:missing": '),
    ],
)
def test_what_no_turn_could_use_is_named_with_its_field(table: dict[str, Any], problem: str) -> None:
    """The line has the field of the file, its value and the remedy."""
    (found,) = _problems({"model": "openai:m", "base_url": OWN}, help=table)
    assert found.startswith(problem)


def test_what_turns_can_use_is_no_problem() -> None:
    """The operator's address, models without an address, the shell, and tables with another mistake."""
    tables: dict[str, dict[str, Any]] = {
        "same": {"base_url": f"{OWN}/"},
        "other": {"model": "openai:n", "base_url": OWN, "modelChoices": ["openai:o"]},
        "shell": {"model": "builtin:shell"},
        "plain": {"instructions": "x"},
        "wrong": {"instrctions": "x", "base_url": "http://127.0.0.1:9999/v1"},
    }
    assert _problems({"model": "openai:m", "base_url": OWN}, **tables) == ()


def test_a_process_that_runs_no_turns_needs_no_models() -> None:
    """A replica that only delivers has no vendor's keys."""
    given = {"roles": ["delivery"], "agents": {"help": {"model": "anthropic:claude-x"}}}
    assert configured_model_problems(Settings.model_validate(given)) == ()
