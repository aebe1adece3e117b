"""`internet: true|false` as another spelling of the network's mode."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sandbox.config import SandboxConfig, normalize


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({}, "deny-all"),
        ({"internet": True}, "allow-all"),
        ({"internet": False}, "deny-all"),
        ({"network": {"internet": True}}, "allow-all"),
        ({"internet": True, "network": {"mode": "allow-all"}}, "allow-all"),
    ],
)
def test_internet_is_the_mode(config: dict[str, Any], mode: str) -> None:
    """It is accepted at the top of a config and in its network."""
    assert SandboxConfig.model_validate(config).network.mode == mode


@pytest.mark.parametrize(
    "config",
    [
        {"internet": "yes"},
        {"internet": 1},
        {"internet": None},
        {"internet": True, "network": {"mode": "deny-all"}},
        {"internet": True, "network": {"mode": ["allow-all"]}},
        {"internet": True, "network": 5},
        {"network": {"internet": True, "mode": "deny-all"}},
    ],
)
def test_what_contradicts_itself_is_refused(config: dict[str, Any]) -> None:
    """No boolean, or another word than the mode beside it, is an error and never a silent choice."""
    with pytest.raises(ValidationError):
        SandboxConfig.model_validate(config)


def test_a_patch_is_spelled_before_it_is_merged() -> None:
    """A patch with `internet` changes the existing mode."""
    assert normalize({"internet": False, "timeout": 5}) == {"timeout": 5, "network": {"mode": "deny-all"}}
