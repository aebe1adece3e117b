"""An example of a tool for Dovecote: a typed async function with a docstring."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.tools.external.functions import tool

SPEED = 80.0


@tool(approval="never", repeatable=True)
async def flight_time(
    kilometres: Annotated[float, Field(gt=0, le=2000, description="the distance")], headwind: float = 0.0
) -> str:
    """Return how long a pigeon needs for a distance. `headwind` is in kilometres per hour."""
    if headwind >= SPEED:
        raise ValueError(f"a pigeon flies {SPEED:g} km/h and makes no way against {headwind:g} km/h")
    return f"{kilometres / (SPEED - headwind):.1f} hours"
