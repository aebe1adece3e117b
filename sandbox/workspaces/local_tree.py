"""Describe, create, rename and copy workspace files from outside the sandbox without leaving the workspace.

Paths are opened as `sandbox.workspaces.local_files` does it: below the workspace's descriptor, in one call.
The last name of a path is never followed if it is a link. A copy is made under a temporary name first and
appears with its whole content.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry
from sandbox.workspaces import local_files
from sandbox.workspaces.bounded_walk import MAX_DEPTH
from sandbox.workspaces.removal import remove_tree

_NO_REPLACE = 1
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SOURCE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_WITHOUT_FLAGS = frozenset({errno.ENOSYS, errno.EINVAL})
_libc = ctypes.CDLL(None, use_errno=True)


def describe(workspace: Path, path: str) -> FileEntry:
    """Return the entry of a path; raises UnsafePath, FileNotFoundError, NotADirectoryError."""
    with local_files.open_root(workspace) as root, local_files.open_directory(root, path) as (parent, name):
        entry = local_files.entry(parent, name)
    if entry is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return entry


def make_directory(workspace: Path, path: str) -> None:
    """Create a directory and its parents durably; raises UnsafePath, FileExistsError, NotADirectoryError."""
    with local_files.open_root(workspace) as root:
        try:
            with local_files.open_parents(root, path) as directory:
                os.fsync(directory)
        except NotADirectoryError:
            with local_files.open_directory(root, path) as (parent, name):
                if local_files.entry(parent, name) is not None:
                    raise FileExistsError(errno.EEXIST, "is a file", path) from None
            raise


def rename(workspace: Path, path: str, target: str) -> None:
    """Give a file, link or directory a free name, whose parents are created.

    Raises UnsafePath, FileNotFoundError, FileExistsError, NotADirectoryError.
    """
    check_move(path, target)
    describe(workspace, path)
    with (
        local_files.open_root(workspace) as root,
        local_files.open_directory(root, path) as (source, name),
        local_files.open_parents(root, os.path.dirname(target)) as goal,  # noqa: PTH120 - a path of no disk
    ):
        _rename(source, name, goal, os.path.basename(target))  # noqa: PTH119 - as above
        os.fsync(goal)
        os.fsync(source)


def copy(workspace: Path, path: str, target: str) -> None:
    """Copy a file, link or directory to a free name, whose parents are created.

    A link is copied as a link; pipes and devices are left out. Raises as `rename` does, and UnsafePath for a
    directory with more than MAX_DEPTH levels.
    """
    check_move(path, target)
    found = describe(workspace, path)
    if found.kind == "other":
        raise UnsafePath(f"{path!r} is not a file, a link or a directory")
    fresh = f".{secrets.token_hex(8)}.tmp"
    with (
        local_files.open_root(workspace) as root,
        local_files.open_directory(root, path) as (source, name),
        local_files.open_parents(root, os.path.dirname(target)) as goal,  # noqa: PTH120 - a path of no disk
    ):
        try:
            _copy(source, name, goal, fresh)
            _rename(goal, fresh, goal, os.path.basename(target))  # noqa: PTH119 - as above
            os.fsync(goal)
        finally:
            _discard(goal, fresh)


def check_move(path: str, target: str) -> None:
    """Raise UnsafePath for the workspace itself, OSError for a directory that would be below itself."""
    if {path, target} & {"", "."}:
        raise UnsafePath("the workspace itself cannot be renamed, copied or replaced")
    if target == path or target.startswith(f"{path}/"):
        raise OSError(errno.EINVAL, "a file or directory cannot be put into itself", target)


def _rename(source: int, name: str, goal: int, wanted: str) -> None:
    """Rename unless the wanted name is taken, in one call where the file system can do that."""
    old, new = os.fsencode(name), os.fsencode(wanted)
    if _libc.renameat2(source, old, goal, new, _NO_REPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in _WITHOUT_FLAGS:
        raise OSError(number, os.strerror(number), wanted)
    if local_files.entry(goal, wanted) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), wanted)
    os.rename(name, wanted, src_dir_fd=source, dst_dir_fd=goal)


def _copy(source: int, name: str, goal: int, wanted: str, *, depth: int = 0) -> None:
    kind = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
    if stat.S_ISDIR(kind):
        _copy_directory(source, name, goal, wanted, depth=depth + 1)
    elif stat.S_ISLNK(kind):
        os.symlink(os.readlink(name, dir_fd=source), wanted, dir_fd=goal)
    elif stat.S_ISREG(kind):
        _copy_file(source, name, goal, wanted)


def _copy_directory(source: int, name: str, goal: int, wanted: str, *, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UnsafePath(f"a directory with more than {MAX_DEPTH} levels of directories cannot be copied")
    os.mkdir(wanted, 0o755, dir_fd=goal)
    with _directory(source, name) as inner, _directory(goal, wanted) as copied:
        for below in os.listdir(inner):  # noqa: PTH208 - a descriptor has no path
            with suppress(FileNotFoundError):  # removed in between
                _copy(inner, below, copied, below, depth=depth)
        os.fsync(copied)


def _copy_file(source: int, name: str, goal: int, wanted: str) -> None:
    with os.fdopen(os.open(name, _SOURCE, dir_fd=source), "rb", buffering=0) as original:
        status = os.fstat(original.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        with os.fdopen(os.open(wanted, _TARGET, 0o600, dir_fd=goal), "wb", buffering=0) as copied:
            _copy_content(original.fileno(), copied.fileno(), status.st_size)
            os.fchmod(copied.fileno(), status.st_mode & 0o777)
            os.utime(copied.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(copied.fileno())


def _copy_content(original: int, copied: int, size: int) -> None:
    """Copy as many bytes as the file had: one that grows during the copy cannot fill the disk."""
    while size > 0 and (chunk := os.read(original, min(_CHUNK, size))):
        size -= len(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(copied, rest) :]


@contextmanager
def _directory(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _discard(parent: int, name: str) -> None:
    """Remove what an interrupted copy left."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            remove_tree(name, parent=parent)
        else:
            os.unlink(name, dir_fd=parent)
