"""Read, write and remove the entries of a listing in a local directory, as what they are listed.

A sync moves files, links and empty directories. Here no part of a path may be a link: what stands behind a
link is an entry of its own, and a link may lead anywhere.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandbox.errors import UnsafePath
from sandbox.workspaces import local_files
from sandbox.workspaces.sync_plan import MAX_TARGET_BYTES, FileStat

_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def read(workspace: Path, path: str, seen: FileStat) -> bytes:
    """Return the content of a file, at most one byte more than listed, or the target of a link.

    Raises OSError if the entry is of another kind by now, and UnsafePath.
    """
    with _open_parent(workspace, path, create=False) as (directory, name):
        if seen.is_link:
            return os.fsencode(os.readlink(name, dir_fd=directory))
        if seen.is_directory:
            os.close(
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            )
            return b""
        with os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnsafePath(f"{path!r} is not a regular file")
            return local_files.read_up_to(file.fileno(), seen.size + 1)


def write(workspace: Path, path: str, content: bytes, seen: FileStat, *, durable: bool) -> None:
    """Create a file, link or directory, or replace a file, link or empty directory; parents are created."""
    with _open_parent(workspace, path, create=True) as (directory, name):
        if seen.is_directory:
            _make_directory(directory, name)
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(name, dir_fd=directory)
        if seen.is_link:
            _replace_link(directory, name, content, modified=seen.modified)
        else:
            local_files.replace(
                directory, name, content, mode=seen.mode | 0o600, modified=seen.modified, durable=durable
            )


def remove(workspace: Path, path: str) -> None:
    """Remove a file, a link or an empty directory; raises OSError for a directory that is not empty."""
    with _open_parent(workspace, path, create=False) as (directory, name):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
        os.fsync(directory)


def check_target(path: str, content: bytes) -> bytes:
    """Return the target of a link; raises UnsafePath for one that no file system holds."""
    if not content or len(content) > MAX_TARGET_BYTES or b"\0" in content:
        raise UnsafePath(
            f"the target of the link {path!r} must have 1 to {MAX_TARGET_BYTES} bytes without NUL"
        )
    return content


def _make_directory(directory: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=directory)
            os.mkdir(name, 0o755, dir_fd=directory)
    os.fsync(directory)


def _replace_link(directory: int, name: str, target: bytes, *, modified: int) -> None:
    fresh = f".{secrets.token_hex(8)}.tmp"
    os.symlink(check_target(name, target), os.fsencode(fresh), dir_fd=directory)
    try:
        os.utime(fresh, ns=(modified, modified), dir_fd=directory, follow_symlinks=False)
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=directory)
        raise
    os.fsync(directory)


@contextmanager
def _open_parent(workspace: Path, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
    """Open the directory of a path without following any link; yield it and the last name."""
    parent, _, name = path.rpartition("/")
    if name in {"", ".", ".."}:
        raise UnsafePath(f"{path!r} names no file")
    with local_files.open_root(workspace) as root:
        if create:
            with local_files.open_parents(root, parent, follow=False) as directory:
                yield directory, name
            return
        with local_files.open_without_links(root, parent) as directory:
            yield directory, name
