"""The tool is found by its entry point, described to the model, and checks its arguments."""

from __future__ import annotations

import pytest

from gateway.tools.external.installed_tools import load_tools
from pigeon_tools import flight_time


def test_the_gateway_finds_the_tool() -> None:
    """Installed beside Dovecote, the package offers one tool."""
    assert "flight_time" in load_tools(reserved=())


async def test_it_returns_the_time() -> None:
    """The function can be tested as any other."""
    assert await flight_time(200) == "2.5 hours"
    assert await flight_time(200, headwind=40) == "5.0 hours"
    with pytest.raises(ValueError, match="makes no way"):
        await flight_time(200, headwind=90)
