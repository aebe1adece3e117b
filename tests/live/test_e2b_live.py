"""E2B itself: needs E2B_API_KEY and skips without it. Costs a minute of one small sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from live_sandbox import run_lifecycle

KEY = os.environ.get("E2B_API_KEY", "")

pytestmark = [pytest.mark.live, pytest.mark.skipif(not KEY, reason="needs E2B_API_KEY")]


async def test_the_life_of_a_sandbox(tmp_path: Path) -> None:
    """It is made, works, is paused, wakes, serves a page at a port, and is gone."""
    await run_lifecycle("e2b", {"api_key": KEY}, tmp_path)
