"""Client commands on a machine where no gateway runs yet."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from commands import DEVNULL, PIPE, gateway_command, run_to_end
from gateway.config.load import environment_without_ours

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
    assert "(Connection refused)" in line


def test_secrets_of_a_database_that_no_gateway_has_used(run: Run, tmp_path: Path) -> None:
    """A wrong directory is not taken for a database of another version."""
    result = run("secrets", "reencrypt", "--data", str(tmp_path / "none"))
    assert (result.exit_code, "has not been started" in result.stderr) == (1, True), result.output
    assert not (tmp_path / "none").exists()


async def test_empty_input_needs_a_gateway_too(tmp_path: Path) -> None:
    """Piped input without a message is no success where no gateway is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, _, errors = await run_to_end("chat", "--url", url, "--key", "dvk_x", cwd=tmp_path)
    assert (code, "no gateway answers" in errors) == (3, True), errors


async def test_a_reader_may_close_the_log_early(tmp_path: Path) -> None:
    """`dovecote logs | head -1` ends without an error, like every other command."""
    (tmp_path / "logs").mkdir()
    line = {"event": "ready", "level": "info", "timestamp": "2026-01-01T00:00:00Z", "logger": "gateway.app"}
    (tmp_path / "logs" / "gateway.log").write_text(f"{json.dumps(line)}\n" * 2000)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        child = await gateway_command(
            "logs", "--lines", "2000", "--data", str(tmp_path), env=environment_without_ours(), cwd=tmp_path,
            stdin=DEVNULL, stdout=writer, stderr=PIPE, started=True,
        )  # fmt: skip
    finally:
        os.close(writer)
    async with asyncio.timeout(60):
        _, errors = await child.communicate()
    assert (child.returncode, errors) == (0, b"")
