"""Agents on language models.

OpenAI's, Anthropic's and compatible servers are called by clients of our own. pydantic-ai, which takes a
second and some 80 MB to import, is imported only for models of other vendors; checking a configuration and
opening the agent do not need it. Checking does not import the clients either: a gateway without a language
model does without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.agents.model.vendors import Vendors, check, check_chain

if TYPE_CHECKING:
    from gateway.agents.model.agent import ModelAgent

__all__ = ["Vendors", "check", "check_chain", "open_model_agent"]


def open_model_agent(vendors: Vendors) -> ModelAgent:
    """Return the model agent; close it with `aclose()` or use it as an async context manager."""
    from gateway.agents.model.agent import ModelAgent

    return ModelAgent(vendors)
