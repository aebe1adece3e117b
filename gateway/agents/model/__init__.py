"""Agents on language models, built on pydantic-ai; no other package imports that library.

Importing pydantic-ai and a vendor's SDK takes seconds and some 80 MB. This package therefore imports them
in a thread for the first turn that needs them; checking a configuration and opening the agent do not need
them.
"""

from __future__ import annotations

from gateway.agents.model.agent import ModelAgent
from gateway.agents.model.vendors import Vendors, check, check_chain

__all__ = ["ModelAgent", "Vendors", "check", "check_chain", "open_model_agent"]


def open_model_agent(vendors: Vendors) -> ModelAgent:
    """Return the model agent; close it with `aclose()` or use it as an async context manager."""
    return ModelAgent(vendors)
