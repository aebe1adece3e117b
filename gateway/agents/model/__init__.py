"""The agent that asks a language model, on pydantic-ai. The only home of that library in this project.

pydantic-ai costs most of a second and some 80 MB to import, so this package does it only when an agent is
opened; checking a configuration (`check`) and passing keys (`Vendors`) do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.agents.model.vendors import Vendors, check

if TYPE_CHECKING:
    from gateway.agents.model.agent import ModelAgent

__all__ = ["Vendors", "check", "open_model_agent"]


def open_model_agent(vendors: Vendors) -> ModelAgent:
    """Return the model agent; close it with `aclose()` or use it as an async context manager."""
    from gateway.agents.model.agent import ModelAgent

    return ModelAgent(vendors)
