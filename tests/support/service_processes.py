"""Stand-ins of cloud services in processes of their own: one each for a whole test run, ended with it."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@cache
def service_url(module: str) -> str:
    """Return the URL of the simulator in a module beside this one; it is started on first use."""
    directory = Path(tempfile.mkdtemp(prefix="dovecote-"))
    root = HERE.parents[1]
    child = subprocess.Popen(
        [sys.executable, str(HERE / f"{module}.py"), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{root}:{HERE}", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(directory)},
        text=True,
    )

    def end() -> None:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    assert url, f"{module} did not start"
    return url
