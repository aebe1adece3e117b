"""Copy one regular file of a directory in which commands of people change names meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Neither wait for the writer of a pipe, nor follow a link that has taken the file's place."""

_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def copy_file(source: str, target: str) -> str:
    """Copy a file with its times and permissions; its holes need no space in the copy either.

    Raises shutil.SpecialFileError, or OSError with ENXIO or ELOOP, for what is not a regular file.
    """
    with _opened(source, _SOURCE) as reading:
        status = os.fstat(reading)
        if not stat.S_ISREG(status.st_mode):
            raise shutil.SpecialFileError(f"{source!r} is not a regular file")
        with _opened(target, _TARGET) as writing:
            for start, end in _data(reading, status.st_size):
                _copy_range(reading, writing, start, end)
            os.ftruncate(writing, status.st_size)
            os.fchmod(writing, stat.S_IMODE(status.st_mode))
            os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
    return target


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    number = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield number
    finally:
        os.close(number)


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between the holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end, or a file that became shorter
                return
            raise
        yield start, end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(target, start, os.SEEK_SET)
    while start < end and (count := os.sendfile(target, source, start, end - start)):
        start += count
