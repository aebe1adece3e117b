"""Commands in an empty directory, a simulated gateway for them, and the console in a browser."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser
from typer.testing import Result

from command_line import run_command_line
from console_driver import Console, open_browser, open_console
from fake_gateway import FakeGateway, fake_gateway

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
        return run_command_line(*words, typed=typed, env=env)

    return run_command


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """Return a simulated gateway."""
    with fake_gateway() as stand_in:
        yield stand_in


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A browser for all stories of a file; each opens a page that shares nothing with the others."""
    async with open_browser() as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def console(browser: Browser) -> AsyncIterator[Console]:
    """A fresh page, which may not have complained of anything by the end."""
    async with open_console(browser) as view:
        yield view
        assert view.console_errors == []
        assert await view.violations() == []
