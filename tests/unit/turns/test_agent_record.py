"""An agent record as a turn needs it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.records.agent import OperatorModel, agent_spec
from gateway.store.accounts.records import Record

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OPERATOR = OperatorModel(models=("openai:big", "ollama:small"), base_url="http://models.example/v1")


def record(config: dict[str, Any]) -> Record:
    """Return an agent record with a config."""
    return Record(
        id="agt_1",
        account="acc_1",
        kind="agent",
        name="a",
        config=config,
        encrypted_secrets={},
        managed=False,
        created_at=NOW,
        updated_at=NOW,
    )


@pytest.mark.parametrize(
    ("config", "models", "base_url"),
    [
        ({}, OPERATOR.models, OPERATOR.base_url),
        ({"model": "default"}, OPERATOR.models, OPERATOR.base_url),
        ({"fallback": ["google:g"]}, ("openai:big", "google:g"), OPERATOR.base_url),
        ({"base_url": "https://own.example/v1"}, OPERATOR.models, "https://own.example/v1"),
        ({"model": "builtin:shell"}, ("builtin:shell",), None),
        ({"model": "anthropic:c", "fallback": ["google:g"]}, ("anthropic:c", "google:g"), None),
    ],
)
def test_a_record_without_a_model_has_the_operators(
    config: dict[str, Any], models: tuple[str, ...], base_url: str | None
) -> None:
    """What a record does not name comes from the operator; a record with a model takes nothing from it."""
    spec = agent_spec(record(config), OPERATOR)
    assert (spec.models, spec.base_url) == (models, base_url)
