"""Commands in an empty directory, and a simulated gateway for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fake_gateway import FakeGateway, fake_gateway
from gateway.cli.app import app

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a way to run a command in an empty directory and a clean environment."""
    for name in [name for name in os.environ if name.startswith("DOVECOTE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))

    def run_command(*words: str, typed: str = "", **env: str) -> Result:
        return CliRunner().invoke(app, words, input=typed, env=env)

    return run_command


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """Return a simulated gateway."""
    with fake_gateway() as stand_in:
        yield stand_in
