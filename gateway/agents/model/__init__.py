"""Agents on language models.

OpenAI's, Anthropic's and compatible servers are called by clients of our own. pydantic-ai, which takes a
second and some 80 MB to import, is imported only for models of other vendors; checking a configuration and
opening the agent do not need it.
"""

from __future__ import annotations

from gateway.agents.model.agent import ModelAgent
from gateway.agents.model.vendors import Vendors, check, check_chain

__all__ = ["ModelAgent", "Vendors", "check", "check_chain", "open_model_agent"]


def open_model_agent(vendors: Vendors) -> ModelAgent:
    """Return the model agent; close it with `aclose()` or use it as an async context manager."""
    return ModelAgent(vendors)
