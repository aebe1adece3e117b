"""Connect sandboxes to the internet: by a network namespace of their own, or by the host's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin"
_NO_PORTS = ("-t", "none", "-u", "none", "-T", "none", "-U", "none", "--no-map-gw")
"""Forward no ports and block the gateway address, so that the host's loopback is unreachable."""

RESOLVER = Path("/etc/resolv.conf")
TIMEOUT_SECONDS = 5.0
MAX_ERROR_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Networking:
    """How networked sandboxes connect; `wrapper` runs bubblewrap in a namespace, () shares the host's."""

    wrapper: tuple[str, ...] = ()
    resolver: Path | None = None
    detail: str = "no pasta was found on this host (Debian: passt)"

    @property
    def isolated(self) -> bool:
        """Return whether networked sandboxes have a namespace of their own."""
        return bool(self.wrapper)


@cache
def find(chosen: Path | None, probe_command: tuple[str, ...]) -> Networking:
    """Return what this host offers for networked sandboxes, tested by running `probe_command`."""
    resolver = RESOLVER.resolve() if RESOLVER.exists() else None
    program = str(chosen) if chosen else shutil.which("pasta", path=_PATH)
    if program is None:
        return Networking(resolver=resolver)
    identity = ("--runas", "0") if os.getuid() == 0 else ()
    wrapper = (program, "--quiet", "--foreground", *identity, "--config-net", *_NO_PORTS, "--")
    problem = _probe_error((*wrapper, *probe_command))
    if problem is not None:
        return Networking(resolver=resolver, detail=f"{program} does not work here: {problem}")
    return Networking(wrapper=wrapper, resolver=resolver, detail=program)


def _probe_error(argv: tuple[str, ...]) -> str | None:
    """Run an empty sandbox in a networked namespace and return the last error line, or None."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's program
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    with process:
        try:
            message = process.communicate(timeout=TIMEOUT_SECONDS)[1]
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return "it does not end"
    if process.returncode == 0:
        return None
    last = message.decode(errors="replace").strip().rpartition("\n")[2]
    return last[:MAX_ERROR_LENGTH] or f"exit code {process.returncode}"
