"""A gateway of a user who has no home directory: no HOME, and no entry in the list of users."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway_process import gateway

USER = ("unshare", "--user", "--map-user=48213", "env", "--unset=HOME")


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python without a home directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOVECOTE_", "XDG_"))}
    argv = [*USER, sys.executable, *words]
    return subprocess.run(argv, env=kept | env, capture_output=True, text=True, check=False, timeout=60)


def has_no_home() -> bool:
    """Return whether this machine can run a program without a home directory."""
    try:
        tried = run("-c", "import pathlib; print(pathlib.Path.home())")
    except FileNotFoundError:
        return False
    return "Could not determine home directory" in tried.stderr


pytestmark = pytest.mark.skipif(not has_no_home(), reason="no user without a home can be made here")


async def test_a_gateway_needs_no_home_directory(tmp_path: Path) -> None:
    """With a data directory of its own it starts, finds runtimes, and a client command runs one there."""
    data = tmp_path / "data"
    async with gateway(data, wrapper=USER, options=["--allow-unsandboxed-host"]):
        said = await asyncio.to_thread(
            run, "-m", "gateway", "chat", "!echo pig''eon", DOVECOTE_DATA_DIR=str(data)
        )
    assert (said.returncode, said.stderr) == (0, "")
    assert "pigeon" in said.stdout


def test_the_data_directory_has_a_default(tmp_path: Path) -> None:
    """It is the one of services; a path with ~ is refused by its name."""
    shown = run("-m", "gateway", "config", "show")
    assert "/var/lib/dovecote" in shown.stdout
    refused = run("-m", "gateway", "config", "check", DOVECOTE_DATA_DIR="~/bot", PWD=str(tmp_path))
    assert refused.returncode == 2
    assert "data_dir" in refused.stderr
    assert "~/bot: there is no home directory for ~" in refused.stderr
