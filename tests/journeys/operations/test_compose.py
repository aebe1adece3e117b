"""Docker Compose accepts compose.yaml, and its variables are the gateway's."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.config.settings import Settings

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "compose.yaml"
BASE = "python:3.11-slim-bookworm"
USER = 10001


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
    """The user of the image is a number, not root, and each of its libraries is verified by hash."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert any("--require-hashes -r requirements.lock" in line for line in lines)
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_the_image_has_every_package_and_nothing_else() -> None:
    """The build copies the packages of the wheel, one by one, and no tests, notes or settings."""
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["packages"]
    expected = {"requirements.lock", "pyproject.toml README.md LICENSE", *packages}
    assert set(copied) == expected
    assert f"ARG BASE={BASE}" in text
    assert text.count("FROM ${BASE}") == text.count("FROM ")


def test_the_chart_and_the_image_agree() -> None:
    """The chart runs the image's user, and its version is the package's."""
    values = yaml.safe_load((ROOT / "deploy/helm/dovecote/values.yaml").read_text())
    chart = yaml.safe_load((ROOT / "deploy/helm/dovecote/Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert values["podSecurityContext"]["runAsUser"] == USER
    assert chart["version"] == chart["appVersion"] == version


def test_its_variables_are_settings() -> None:
    """Every DOVECOTE_ variable that it sets is one the gateway reads."""
    named = re.findall(r"^ +DOVECOTE_([A-Z_]+):", COMPOSE.read_text(), re.MULTILINE)
    assert named
    assert {name.lower() for name in named} <= set(Settings.model_fields)
