"""Test runs at once: one that ends leaves the control groups of the others, in which sandboxes start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
MOUNT = Path("/sys/fs/cgroup")
ENDING = """
from pathlib import Path
from session import Session

one = Session()
Path("GROUP").mkdir()
one.end()
one.remove()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """Return where a gateway's control group would be, that this process may create."""
    group = MOUNT / ("" if (MOUNT / "cgroup.controllers").exists() else "pids") / f"dovecote-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be created: {error.strerror}")
    group.rmdir()
    yield group
    with suppress(OSError):
        group.rmdir()


def test_a_session_that_ends_leaves_the_control_groups_of_another(group: Path) -> None:
    """Tests of packages run a session within this one, which is not the last to end."""
    program = ENDING.replace("GROUP", str(group))
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SUPPORT)}, check=True
    )
    assert group.exists()
