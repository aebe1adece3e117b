"""Remove a directory of this machine in which commands made what they liked."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(directory: Path | str, *, parent: int | None = None) -> None:
    """Remove a directory with everything below it, however deep it is and whatever its permissions are.

    Directories below it are moved to its top before they are removed, so that neither the stack nor open
    files limit the depth. No link is followed. The name may be that of an entry of an open directory
    (`parent`). A directory that does not exist is no error. Raises the first OSError after all that can be
    removed is.
    """
    with suppress(FileNotFoundError):
        with _unlocked(str(directory), parent) as top:
            _remove_entries(top)
        os.rmdir(directory, dir_fd=parent)


def _remove_entries(top: int) -> None:
    kept: dict[str, OSError] = {}
    while names := [name for name in os.listdir(top) if name not in kept]:
        for name in names:
            try:
                _remove_entry(top, name)
            except FileNotFoundError:
                continue
            except OSError as error:
                kept[name] = error
    for first in kept.values():
        raise first


def _remove_entry(top: int, name: str) -> None:
    if not _is_directory(top, name):
        os.unlink(name, dir_fd=top)
        return
    failure: OSError | None = None
    with _unlocked(name, top) as inner:
        for child in os.listdir(inner):  # noqa: PTH208 - a descriptor has no path
            try:
                _empty(inner, child, top)
            except FileNotFoundError:
                continue
            except OSError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    os.rmdir(name, dir_fd=top)


def _empty(directory: int, name: str, top: int) -> None:
    """Remove a file from a directory; move another directory to the top, where its turn comes."""
    if not _is_directory(directory, name):
        os.unlink(name, dir_fd=directory)
        return
    with _unlocked(name, directory):  # its new parent is written into it
        os.rename(name, f"removed-{secrets.token_hex(16)}", src_dir_fd=directory, dst_dir_fd=top)


def _is_directory(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def _unlocked(name: str, parent: int | None = None) -> Iterator[int]:
    """Open a directory after its owner has been given all permissions, if that is this user."""
    handle = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        place = f"/proc/self/fd/{handle}"
        with suppress(PermissionError):  # of another user
            Path(place).chmod(0o700)
        opened = os.open(f"{place}/.", os.O_RDONLY | _DIRECTORY)
    finally:
        os.close(handle)
    try:
        yield opened
    finally:
        os.close(opened)
