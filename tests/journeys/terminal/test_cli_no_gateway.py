"""Client commands on a machine where no gateway runs yet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize("words", ["status", "jobs list", "chat hello", "channels test bot"])
def test_before_the_first_start_no_gateway_runs_here(run: Run, tmp_path: Path, words: str) -> None:
    """In a directory with fresh settings one line says that none runs and how to start one; exit code 3."""
    with socket.socket() as taken:  # bound and not listening: this port does not answer
        taken.bind(("127.0.0.1", 0))
        (tmp_path / "dovecote.toml").write_text('data_dir = "data"\n[agent]\nmodel = "builtin:shell"\n')
        (tmp_path / ".env").write_text("DOVECOTE_LOG_FORMAT=json\n")
        result = run(*words.split(), DOVECOTE_PORT=str(taken.getsockname()[1]))
    assert result.exit_code == 3, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("dovecote: no gateway runs here")
    assert "`dovecote serve`" in line
