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
    """Debian's own Compose reads it, and reports each secret that is missing: none has a default."""
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    command = [program, "--file", str(COMPOSE), "config", "--quiet"]
    secrets = dict.fromkeys(("DOVECOTE_SECRET_KEYS", "NATS_TOKEN", "POSTGRES_PASSWORD"), "0" * 64)
    done = subprocess.run(command, env=secrets, capture_output=True, check=False, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for name in secrets:
        fewer = {one: value for one, value in secrets.items() if one != name}
        missing = subprocess.run(command, env=fewer, capture_output=True, check=False, text=True, timeout=60)
        assert missing.returncode != 0, name
        assert name in missing.stderr
        assert "set it to a long random text" in missing.stderr


def test_the_image_runs_as_a_user_of_its_own() -> None:
    """The last user of the image is not root, and each of its libraries is verified by hash."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER dovecote"]
    assert any("--require-hashes -r requirements.lock" in line for line in lines)


def test_its_variables_are_settings() -> None:
    """Every DOVECOTE_ variable that it sets is one the gateway reads."""
    named = re.findall(r"^ +DOVECOTE_([A-Z_]+):", COMPOSE.read_text(), re.MULTILINE)
    assert named
    assert {name.lower() for name in named} <= set(Settings.model_fields)
