"""The agent that asks a language model, on pydantic-ai. The only home of that library in this project.

pydantic-ai and a vendor's SDK cost seconds and some 80 MB to import, so this package does it only for the
first turn that needs them, in a thread; checking a configuration and opening the agent do without.
"""

from __future__ import annotations

from gateway.agents.model.agent import ModelAgent
from gateway.agents.model.vendors import Vendors, check, check_chain

__all__ = ["ModelAgent", "Vendors", "check", "check_chain", "open_model_agent"]


def open_model_agent(vendors: Vendors) -> ModelAgent:
    """Return the model agent; close it with `aclose()` or use it as an async context manager."""
    return ModelAgent(vendors)
