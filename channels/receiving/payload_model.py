"""The base of the models of platforms' payloads."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PayloadModel(BaseModel):
    """Base of all payload models: unknown fields are ignored, and errors never show values."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)
