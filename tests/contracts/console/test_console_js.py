"""The console's own code, under node's test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
CASES = sorted((Path(__file__).parent).glob("*.test.mjs"))


@pytest.mark.skipif(NODE is None, reason="node is not installed, which runs the console's unit tests")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_consoles_code_keeps_its_promises(case: Path) -> None:
    """Every test of the page's pure parts passes."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--test", "--test-reporter=tap", str(case)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
