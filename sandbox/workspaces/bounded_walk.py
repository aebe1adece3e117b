"""Walk through a directory in which commands made what they liked, without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

MAX_DEPTH = 256
"""Levels below a workspace or HOME that are entered: `os.fwalk` needs a frame and an open file for each."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryMoved(Exception):
    """A directory above the position of a walk was moved, so the walk cannot return to it."""


def walk(directory: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
    """Yield what `os.fwalk` yields, for directories that are not deeper than MAX_DEPTH."""
    top = len(directory.parts)
    for parent, names, plain, descriptor in os.fwalk(directory, follow_symlinks=False):
        yield parent, names, plain, descriptor
        if len(Path(parent).parts) - top >= MAX_DEPTH:
            names.clear()


def statuses(directory: Path) -> Iterator[os.stat_result]:
    """Yield the status of each name below a directory, at any depth; what cannot be read is left out.

    One directory is open at a time, and the walk returns by `..`. Raises DirectoryMoved.
    """
    try:
        position = _Position(directory)
    except OSError:  # removed in between
        return
    with closing(position):
        waiting = [(yield from position.entries())]
        while waiting:
            if position.enter_one(waiting[-1]):
                waiting.append((yield from position.entries()))
            else:
                waiting.pop()
                position.leave()


class _Position:
    """The directory in which a walk is, and the identities of those above it."""

    def __init__(self, top: Path) -> None:
        self._descriptor = os.open(top, _DIRECTORY & ~os.O_NOFOLLOW)
        self._above: list[tuple[int, int]] = []

    def close(self) -> None:
        os.close(self._descriptor)

    def entries(self) -> Generator[os.stat_result, None, list[str]]:
        """Yield the status of each name, and return the names of the directories."""
        directories = []
        for name in self._names():
            try:
                status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                directories.append(name)
            yield status
        return directories

    def enter_one(self, names: list[str]) -> bool:
        """Take names from the list until one is a directory that can be entered, and left again."""
        while names:
            try:
                entered = os.open(names.pop(), _DIRECTORY, dir_fd=self._descriptor)
            except OSError:
                continue
            if _can_be_left(entered):
                self._above.append(_identity(self._descriptor))
                self._replace(entered)
                return True
            os.close(entered)
        return False

    def leave(self) -> None:
        """Return to the directory above, if this is not the top."""
        if not self._above:
            return
        try:
            self._replace(os.open("..", _DIRECTORY, dir_fd=self._descriptor))
        except OSError as error:
            raise DirectoryMoved from error
        if _identity(self._descriptor) != self._above.pop():
            raise DirectoryMoved

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._descriptor)  # noqa: PTH208 - a descriptor has no path
        except OSError:
            return []

    def _replace(self, descriptor: int) -> None:
        os.close(self._descriptor)
        self._descriptor = descriptor


def _can_be_left(descriptor: int) -> bool:
    try:
        os.stat("..", dir_fd=descriptor)
    except OSError:  # its owner may list it and not search it
        return False
    return True


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
