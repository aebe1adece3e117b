"""What all workers of one test run share: a directory, the zygote, and things that are made once.

The first process of a run begins the session; workers find it by an environment variable, which also marks
every process that a test starts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUP_MOUNT = Path("/sys/fs/cgroup")
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 12 << 30
"""A file system in memory, and how many bytes must be free.

At the end of a run it has 3 GiB of PostgreSQL's databases and 1.5 GiB of other files. Processes need memory
too.
"""

LOCK = Path(tempfile.gettempdir()) / f"dovecote-test-sessions-{os.getuid()}.lock"
"""Every session holds this lock. Only the last one removes control groups: others may still use theirs."""

VARIABLE = "TESTS_OF_DOVECOTE"
"""Names the session's directory; settings of the product have another prefix."""

AUTHORITIES = "SSL_CERT_FILE"
"""Names the file of certificate authorities for OpenSSL, httpx and uv."""

SYSTEM_AUTHORITIES = "SYSTEM_AUTHORITIES_OF_TESTS"
"""Keeps what `AUTHORITIES` named before the session."""


def running() -> bool:
    """Return whether there is a session: a benchmark that uses this folder has none."""
    return VARIABLE in os.environ


def directory() -> Path:
    """Return the directory of the session."""
    return Path(os.environ[VARIABLE])


def fast_disk() -> str | None:
    """Return a directory whose files are in memory, or None where there is none: `tempfile` has a default."""
    is_large = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return str(MEMORY) if is_large and _free_memory() >= MEMORY_BYTES else None


def _free_memory() -> int:
    """Return the bytes that processes may still use, from proc(5)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def zygote() -> str:
    """Return the socket of the zygote."""
    return str(directory() / "zygote")


def listening(path: str) -> socket.socket:
    """Return a socket that listens at a path, for a zygote."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(256)
    return listener


def unmarked() -> dict[str, str]:
    """Return the environment for what ends by itself after the whole run."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def trusting_all() -> dict[str, str]:
    """Return the environment for what connects to other machines: with all of the system's authorities."""
    environment = dict(os.environ)
    _trust_all(environment)
    return environment


def _trust_all(environment: MutableMapping[str, str]) -> None:
    before = environment.pop(SYSTEM_AUTHORITIES, None)
    if before is not None:
        del environment[AUTHORITIES]
    if before:
        environment[AUTHORITIES] = before


@contextmanager
def making(name: str) -> Iterator[Path | None]:
    """Make something once for all workers: yields where, or None when it was made before."""
    place = directory() / name
    with (directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = directory() / f"{name}.made"
        yield None if made.exists() else place
        made.touch()


class Session:
    """A test run, from its first process."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="dovecote-tests-", dir=fast_disk()))
        self._directory.chmod(0o711)  # PostgreSQL runs as another user below it
        self._groups_before = frozenset(_control_groups())
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        os.environ[VARIABLE] = str(self._directory)
        self._trusts_one = SYSTEM_AUTHORITIES not in os.environ and self._trust_one()
        with listening(zygote()) as listener:  # before the zygote runs: a first test may be faster
            self._zygote = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "zygote.py"), str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )

    @property
    def mark(self) -> str:
        """What the environment of each process that a test started contains."""
        return f"{VARIABLE}={self._directory}"

    def end(self) -> None:
        """End what the workers shared."""
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(20)

    def remove(self) -> None:
        """Remove what is left on the disk."""
        shutil.rmtree(self._directory, ignore_errors=True)
        del os.environ[VARIABLE]
        if self._trusts_one:
            _trust_all(os.environ)
        with self._lock, suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_empty(set(_control_groups()) - self._groups_before)

    def _trust_one(self) -> bool:
        """Let TLS clients read one of the system's authorities: reading them all takes each client 30 ms.

        OpenSSL still finds the others in its directory when it needs one. Returns whether there is a bundle.
        """
        bundle = ssl.get_default_verify_paths().cafile
        first, end, _ = (Path(bundle).read_text() if bundle else "").partition("-----END CERTIFICATE-----\n")
        if end:
            one = self._directory / "authority.pem"
            one.write_text(first + end)
            os.environ[SYSTEM_AUTHORITIES] = os.environ.get(AUTHORITIES, "")
            os.environ[AUTHORITIES] = str(one)
        return bool(end)


def _control_groups() -> Iterator[Path]:
    """Yield the directories of gateways' control groups."""
    yield from CGROUP_MOUNT.glob("dovecote-*")
    yield from CGROUP_MOUNT.glob("*/dovecote-*")


def _remove_empty(groups: Iterable[Path]) -> None:
    """Remove the groups of gateways that tests have killed: no other gateway opens their data."""
    for top in groups:
        for directory, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
