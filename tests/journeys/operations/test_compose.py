"""Docker Compose accepts compose.yaml, and its variables are the gateway's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config.settings import Settings

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "compose.yaml"


def test_it_is_valid_by_the_compose_schema() -> None:
    """Debian's own Compose reads it, and reports the missing encryption key."""
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    command = [program, "--file", str(COMPOSE), "config", "--quiet"]
    key = {"DOVECOTE_SECRET_KEYS": "0" * 64}
    done = subprocess.run(command, env=key, capture_output=True, check=False, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    missing = subprocess.run(command, env={}, capture_output=True, check=False, text=True, timeout=60)
    assert missing.returncode != 0
    assert "set it to a long random text" in missing.stderr


def test_its_variables_are_settings() -> None:
    """Every DOVECOTE_ variable that it sets is one the gateway reads."""
    named = re.findall(r"^ +DOVECOTE_([A-Z_]+):", COMPOSE.read_text(), re.MULTILINE)
    assert named
    assert {name.lower() for name in named} <= set(Settings.model_fields)
