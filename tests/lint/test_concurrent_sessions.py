"""A test run's session: it leaves what is not its own, and gives back the environment that it found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from session import AUTHORITIES, VARIABLE, trusting_all

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

TRUSTING = """
import os, ssl
from session import AUTHORITIES, Session, trusting_all

def count():
    return ssl.create_default_context().cert_store_stats()["x509_ca"]

found, all_of_them = dict(os.environ), count()
one = Session()
assert count() == min(1, all_of_them)
assert trusting_all().get(AUTHORITIES) == found.get(AUTHORITIES)
one.end()
one.remove()
assert (dict(os.environ), count()) == (found, all_of_them)
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


@pytest.mark.parametrize("is_named", [True, False])
def test_a_session_trusts_one_authority_and_gives_all_of_them_back(is_named: bool) -> None:
    """Clients of tests read one certificate; what connects to a package index still finds them all."""
    left_out = {VARIABLE} if is_named else {VARIABLE, AUTHORITIES}
    env = {name: value for name, value in trusting_all().items() if name not in left_out}
    subprocess.run([sys.executable, "-c", TRUSTING], env={**env, "PYTHONPATH": str(SUPPORT)}, check=True)
