"""Recognise from the error of any library which resource of the machine it lacked, such as disk space."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path


class Resource(StrEnum):
    """What can be used up or fail; the value is its name for people."""

    DISK = "disk"
    WRITABLE_DISK = "writable disk"
    OPEN_FILES = "open files"


EXHAUSTED = {
    Resource.DISK: "the disk is full; an operator must free space",
    Resource.WRITABLE_DISK: "the disk fails or is read-only; an operator must make it writable",
    Resource.OPEN_FILES: "the limit of open files is reached; an operator must raise it (ulimit -n)",
}
"""What happened and the remedy, for responses and logs."""

_ERRNO = {
    errno.ENOSPC: Resource.DISK,
    errno.EDQUOT: Resource.DISK,
    errno.EROFS: Resource.WRITABLE_DISK,
    errno.EIO: Resource.WRITABLE_DISK,
    errno.EMFILE: Resource.OPEN_FILES,
    errno.ENFILE: Resource.OPEN_FILES,
}
_SQLITE_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_POSTGRES_DISK_FULL = "53100"


def exhausted_resource(error: BaseException) -> Resource | None:
    """Return the resource whose exhaustion caused an error, or None."""
    return next(filter(None, map(_resource_of, error_chain(error))), None)


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and the driver's error that SQLAlchemy wraps."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        wrapped = getattr(one, "orig", None)
        pending += [one.__context__, one.__cause__, wrapped if isinstance(wrapped, BaseException) else None]


def _resource_of(error: BaseException) -> Resource | None:
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return _ERRNO[error.errno]
    code = getattr(error, "sqlite_errorcode", None)
    if code in _SQLITE_DISK or getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL:
        return Resource.DISK
    if code is not None and code & 0xFF == sqlite3.SQLITE_IOERR:
        return Resource.WRITABLE_DISK
    if code is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN and not can_open_files():
        return Resource.OPEN_FILES
    return None


def can_open_files() -> bool:
    """Return whether the process can open one more file; SQLite does not report why it could not."""
    try:
        with Path("/dev/null").open("rb"):
            return True
    except OSError as error:
        return error.errno not in _ERRNO
