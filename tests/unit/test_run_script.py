"""What the program that runs commands in a box keeps in mind about its own shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandbox.inside import program

KILLED_AT_ONCE = """
for round in 1 2 3 4 5 6 7 8; do
  (sleep 3) >/dev/null 2>&1 &
  kill $!
  wait $! 2>/dev/null
done
[ -d "$d" ] && printf %s "$d"
"""


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_subshell_that_is_killed_at_once_takes_no_output_along(shell: str, tmp_path: Path) -> None:
    """The directory of a run is removed by the shell that made it, not by what it forked; then it is gone."""
    beginning = program("run.sh").partition("exec 3<")[0]
    script = f"TMPDIR={tmp_path}; mount={tmp_path}; input=\n{beginning}\n{KILLED_AT_ONCE}"
    said = subprocess.run([shell, "-c", script], capture_output=True, check=True, text=True, timeout=30)
    assert said.stdout.startswith(str(tmp_path))
    assert not Path(said.stdout).exists()
