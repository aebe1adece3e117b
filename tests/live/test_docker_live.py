"""A real engine: needs DOCKER_HOST and DOVECOTE_LIVE_DOCKER=1, and skips without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from live_sandbox import run_lifecycle

HOST = os.environ.get("DOCKER_HOST", "")
WANTED = os.environ.get("DOVECOTE_LIVE_DOCKER", "") == "1"
IMAGE = os.environ.get("DOVECOTE_LIVE_DOCKER_IMAGE", "python:3.12-slim")
NETWORK = os.environ.get("DOVECOTE_LIVE_DOCKER_NETWORK", "bridge")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (HOST and WANTED), reason="needs DOCKER_HOST and DOVECOTE_LIVE_DOCKER=1"),
]


async def test_the_life_of_a_container(tmp_path: Path) -> None:
    """It is made, works, sleeps, wakes, serves a page at a published port, and is removed."""
    settings = {"host": HOST, "image": IMAGE, "network": NETWORK, "ports": [8080]}
    await run_lifecycle("docker", settings, tmp_path)
