"""The data directory's lock: one instance at a time, because two brokers would gladly share one store."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Self


class DataDirBusy(RuntimeError):
    """Another gateway uses this data directory."""


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
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            by = f" (process {holder})" if holder else ""
            raise DataDirBusy(f"another instance is using the data directory {self.directory}{by}") from error
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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
