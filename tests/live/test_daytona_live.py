"""Daytona itself: needs DAYTONA_API_KEY and skips without it. Costs minutes of one sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from live_sandbox import run_lifecycle

KEY = os.environ.get("DAYTONA_API_KEY", "")
URL = os.environ.get("DAYTONA_API_URL", "https://app.daytona.io/api")

pytestmark = [pytest.mark.live, pytest.mark.skipif(not KEY, reason="needs DAYTONA_API_KEY")]


async def test_the_life_of_a_sandbox(tmp_path: Path) -> None:
    """It is made, works, is stopped, starts again, serves a page at a signed preview, and is gone."""
    await run_lifecycle("daytona", {"api_key": KEY, "api_url": URL}, tmp_path)
