"""The data directory: closed to other users, and locked: two brokers would corrupt one store."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

log = structlog.get_logger(__name__)

FIRST_KEY_ID = "first_key_id"
"""The file in which the holder of the lock writes down which key encrypts the secrets."""

COPIED_NAME = "dovecote.db.copied"
"""The SQLite file once its rows are in PostgreSQL; no gateway starts on it again by mistake."""

OTHERS = 0o077
"""The permissions of everybody but the owner."""

FILES = ("arrivals", "dovecote.db", "first_key_id", "instance", "key", "lock", "secret.key", "url")
DIRECTORIES = (
    "callbacks",
    "carried",
    "egress",
    "files",
    "logs",
    "nats",
    "sandboxes",
    "scratch",
    "snapshots",
    "workspaces",
)
"""The names in the data directory that the gateway uses, by kind."""


class DataDirUnusable(RuntimeError):
    """The data directory is none, cannot be created, or has a file in place of a directory or vice versa."""


class DataDirExposed(RuntimeError):
    """Other users of the machine can read the data directory, and it may not be ours to close."""


def prepare_data_dir(directory: Path) -> None:
    """Create the data directory, or close it to other users; raises DataDirUnusable, DataDirExposed.

    It holds keys, the database and files. A directory with other contents is not changed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = "is not a directory" if directory.exists() else f"cannot be created: {error.strerror}"
        raise DataDirUnusable(
            f"data_dir = {directory} (--data, DOVECOTE_DATA_DIR): {reason}. "
            "Choose a path that this user may write"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DataDirUnusable(
            f"data_dir = {directory} (--data, DOVECOTE_DATA_DIR): this user cannot write to it, or its file "
            "system is read-only. Permit it, or choose another path"
        )
    for problem in kind_problems(directory):
        raise DataDirUnusable(f"{problem}. {KIND_REMEDY}")
    found = directory.stat()
    if not found.st_mode & OTHERS:
        return
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid != os.geteuid():
        log.warning("data_dir.exposed", path=str(directory), mode=mode, owner=found.st_uid)
    elif _is_ours(directory):
        directory.chmod(0o700)
        log.info("data_dir.closed", path=str(directory), mode_before=mode)
    else:
        raise DataDirExposed(
            f"other users can read the data directory {directory} (mode {mode}): "
            f"run `chmod 700 {directory}`, or choose a new directory with --data"
        )


KIND_REMEDY = "Move it away and start again, or choose another data directory with --data"


def kind_problems(directory: Path) -> list[str]:
    """Return a text for each file of a data directory that should be a directory, and the reverse."""
    files = (directory / name for name in FILES)
    directories = (directory / name for name in DIRECTORIES)
    return [
        *(f"{path} is a directory, but must be a file" for path in files if path.is_dir()),
        *(
            f"{path} is a file, but must be a directory"
            for path in directories
            if path.exists() and not path.is_dir()
        ),
    ]


def separate_disks(directory: Path) -> list[Path]:
    """Return the directories in the data directory that are on disks of their own, or cannot be written.

    A mount of the same disk, which may be read-only, is found by its rights.
    """
    device = directory.stat().st_dev
    return [one for name in DIRECTORIES if _is_separate(one := directory / name, device)]


def _is_separate(directory: Path, device: int) -> bool:
    try:
        return directory.stat().st_dev != device or not os.access(directory, os.W_OK)
    except FileNotFoundError:
        return False
    except OSError:  # a mount whose server is gone
        return True


def _is_ours(directory: Path) -> bool:
    """Return whether a gateway has used the directory, or it is unused."""
    return (directory / "lock").exists() or {path.name for path in directory.iterdir()} <= {"lost+found"}


def remove_at_end(path: Path) -> None:
    """Remove a file that is of use while a gateway runs.

    On a disk that only reads now the file stays, and the next start replaces it.
    """
    with suppress(OSError):
        path.unlink()


class DataDirBusy(RuntimeError):
    """Another gateway uses this data directory."""


def process_with_other_key(directory: Path, first_key: str) -> str | None:
    """Return the id of the process that holds the lock of a data directory and encrypts with another key.

    One that has not written its key down yet is such a process. None: there is none. Raises OSError.
    """
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = directory / FIRST_KEY_ID
        return None if written.exists() and written.read_text() == first_key else _read_holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> str:
    """Return the process id that the holder of a lock has written down, as people's scripts read it too."""
    return os.read(descriptor, 32).decode(errors="replace").strip()


class DataDirLock:
    """An exclusive lock on a directory, held until it is closed or the process dies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The descriptor is not inheritable (PEP 446): a child process cannot keep the lock.
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            by = f" (process {holder})" if holder else ""
            raise DataDirBusy(f"another instance is using the data directory {self.directory}{by}") from error
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        (self.directory / FIRST_KEY_ID).unlink(missing_ok=True)  # that of the last holder
        self._descriptor = descriptor
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def name_key(self, first_key: str) -> None:
        """Write down which key encrypts the secrets, for the operator who replaces it."""
        assert self._descriptor is not None, "the lock is held"
        (self.directory / FIRST_KEY_ID).write_text(first_key)

    @property
    def is_held(self) -> bool:
        """Return whether this object holds the lock."""
        return self._descriptor is not None

    def instance_id(self) -> str:
        """Return the permanent id of this data directory; creates it on first use."""
        path = self.directory / "instance"
        if not path.exists():
            partial = path.with_suffix(".new")
            partial.write_text(secrets.token_hex(8))
            partial.replace(path)
        return path.read_text().strip()
