"""How the program that runs commands in a sandbox handles its own shell."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from sandbox.exec.scripts import program

KILLED_AT_ONCE = """
for round in 1 2 3 4 5 6 7 8; do
  (sleep 3) >/dev/null 2>&1 &
  kill $!
  wait $! 2>/dev/null
done
[ -d "$d" ] && printf %s "$d"
"""


SLOW_AFTER_SLEEP = """
set -T; after=
trap '[ -z "$after" ] || command -p sleep 0.5; after=; [ "${BASH_COMMAND%% *}" != sleep ] || after=yes' DEBUG
"""


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_subshell_that_is_killed_at_once_takes_no_output_along(shell: str, tmp_path: Path) -> None:
    """What the shell of a run forks never removes the directory of that run, however early it is killed."""
    beginning = program("run.sh").partition("exec 3<")[0]
    script = f"TMPDIR={quote(str(tmp_path))}; mount=$TMPDIR; input=\n{beginning}\n{KILLED_AT_ONCE}"
    assert _run(shell, script).startswith(str(tmp_path))


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("mount", ["there", "no-directory/there"])
def test_a_run_leaves_no_directory_behind(shell: str, mount: str, tmp_path: Path) -> None:
    """Its directory is removed when the result is reported, and when the workspace cannot be entered."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "no-directory").touch()
    place = quote(str(tmp_path))
    words = f"TMPDIR={place}/runs; mount={place}/{mount}; input=; key=x; limit=9; seconds=9; sweeping=yes"
    said = _run(shell, f"{words}; script='echo hi; exit 3'\n{program('jobs.sh')}\n{program('run.sh')}")
    assert said == ("gone\n" if "no-directory" in mount else "3 no\naGkK\n.\n")
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_that_ends_at_once_leaves_no_timer_behind(tmp_path: Path) -> None:
    """The shell that starts the timer of a run is stopped before it reaches its next command."""
    place = quote(str(tmp_path))
    words = f"TMPDIR={place}; mount={place}; input=; key=x; limit=9; seconds=67.25; sweeping=yes; script=:"
    _run("bash", f"{SLOW_AFTER_SLEEP}\n{words}\n{program('jobs.sh')}\n{program('run.sh')}")
    left = [
        int(one.parent.name)
        for one in Path("/proc").glob("[0-9]*/cmdline")
        if _read(one) == b"sleep\x0067.25\0"
    ]
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def _run(shell: str, script: str) -> str:
    """Run a script to its end, and return its output."""
    return subprocess.run(
        [shell, "-c", script], capture_output=True, check=True, text=True, timeout=30
    ).stdout
