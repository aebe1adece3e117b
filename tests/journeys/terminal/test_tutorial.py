"""Every shell block of the tutorial runs, in its order, as a reader would run it; or says why not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import session
from gateway_process import reserve_port

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "start.md"
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -I "{ROOT}/tests/support/forked_program.py" "$@"\n'
"""The real command line starts in `test_cli` and from a wheel in `test_release`."""


def blocks() -> list[tuple[bool, str, str]]:
    """Return the blocks of the page: whether it is run, its language, its text."""
    return [(not mark, language, text) for mark, language, text in BLOCK.findall(PAGE.read_text())]


def test_a_block_is_shell_and_most_run() -> None:
    """There is no block that this test does not see, and the steps without accounts all run."""
    assert PAGE.read_text().count("```") == 2 * len(blocks())
    assert {language for _, language, _ in blocks()} == {"sh"}
    assert sum(runs for runs, *_ in blocks()) == 7


def end_session(leader: int) -> None:
    """Kill the processes of a session, in all of its process groups."""
    for number in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(number) == leader:
                os.kill(number, signal.SIGKILL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.timeout(300)
def test_the_tutorial_works(tmp_path: Path) -> None:
    """A shell runs the blocks in an empty home directory; a command that fails ends it.

    It has job control (-m) as a reader's shell has: each pipeline is a process group of its own.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dovecote").write_text(PROGRAM)
    (programs / "dovecote").chmod(0o755)
    script = "set -eumx\n" + "\n".join(text for runs, _, text in blocks() if runs)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
        session.VARIABLE: str(session.directory()),
        "DOVECOTE_PORT": str(reserve_port()),
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = shell.communicate(timeout=240)
    finally:
        end_session(shell.pid)
    log = tmp_path / "dovecote.log"
    assert shell.returncode == 0, stderr[-3000:] + (log.read_text()[-3000:] if log.exists() else "")
    assert "hello from a sandbox" in stdout
    assert '"turnId"' in stdout
    results = [line for line in stdout.splitlines() if "message.completed" in line and "Job job_" in line]
    assert len(results) == 1, results
