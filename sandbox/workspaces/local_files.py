"""Read and write workspace files from outside the sandbox without leaving the workspace.

Programs in the sandbox may replace directories by links at any moment, so a path is never resolved first and
opened later: the kernel resolves it below the workspace's descriptor in one call (openat2, RESOLVE_BENEATH
and RESOLVE_NO_MAGICLINKS). On a kernel without openat2 the path is walked without following any link.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry, relative_path
from sandbox.workspaces.removal import remove_tree

__all__ = ["FileEntry", "list_directory", "read", "relative_path", "remove", "write"]

_OPENAT2 = 437
_BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
_NO_LINKS = 0x04  # RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_ATTEMPTS = 32
_CHUNK = 1024 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read(workspace: Path, path: str, limit: int) -> bytes:
    """Return at most `limit` bytes of a file; raises UnsafePath, FileNotFoundError, IsADirectoryError."""
    with open_root(workspace) as root:
        descriptor = _open(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if not stat.S_ISREG(kind):
            raise UnsafePath(f"{path!r} is not a regular file")
        return read_up_to(file.fileno(), limit)


def is_open_for_writing(workspace: Path, path: str) -> bool | None:
    """Return whether any process of this machine has a file open for writing; None if that cannot be told.

    The kernel refuses a read lease on such a file, whatever namespace the process is in. It cannot be told
    for a file of another user without CAP_LEASE, and on file systems without leases. Raises UnsafePath, and
    FileNotFoundError.
    """
    with open_root(workspace) as root:
        descriptor = _open(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Who opens it meanwhile waits for the unlocking, and this process gets a signal that it ignores.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)
    return False


def write(
    workspace: Path,
    path: str,
    content: bytes,
    *,
    mode: int | None = None,
    modified: int | None = None,
    durable: bool = True,
) -> None:
    """Write a file atomically, also across a power failure; parents are created.

    The mode is that of the existing file, else `mode`; `modified` (nanoseconds) sets the modification time.
    With `durable` False, a power failure may lose the file until its file system is synced.
    """
    if path in {"", "."}:
        raise UnsafePath("a file needs a name")
    parent, name = os.path.split(path)
    with open_root(workspace) as root, open_parents(root, parent) as directory:
        if _is_link(directory, name):
            _write_through(root, path, content)
        else:
            replace(directory, name, content, mode=mode, modified=modified, durable=durable)


def list_directory(workspace: Path, path: str) -> list[FileEntry]:
    """Return the entries of a directory by name; raises UnsafePath, FileNotFoundError, NotADirectoryError."""
    with open_root(workspace) as root:
        directory = _open(root, path, _DIRECTORY)
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - a descriptor has no path
        return [found for name in names if (found := entry(directory, name)) is not None]
    finally:
        os.close(directory)


def entry(directory: int, name: str) -> FileEntry | None:
    """Return the entry of a name in an open directory; None if there is none."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
    return FileEntry(
        name=name, kind=kind, size=found.st_size, modified=found.st_mtime, changed=found.st_ctime
    )


def remove(workspace: Path, path: str) -> None:
    """Remove a file, a link (not its target) or a directory with its content; raises UnsafePath."""
    if path in {"", "."}:
        raise UnsafePath("the workspace itself is removed with its record")
    with open_root(workspace) as root, open_directory(root, path) as (directory, name):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            remove_tree(name, parent=directory)
        else:
            os.unlink(name, dir_fd=directory)
        os.fsync(directory)


@contextmanager
def open_root(workspace: Path) -> Iterator[int]:
    """Open the workspace's directory."""
    descriptor = os.open(workspace, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_directory(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that contains `path`; yield it and the last name, which is `.` for the workspace."""
    parent, name = os.path.split(path)
    directory = _open(root, parent or ".", _DIRECTORY)
    try:
        yield directory, name or "."
    finally:
        os.close(directory)


@contextmanager
def open_without_links(root: int, path: str) -> Iterator[int]:
    """Open the directory `path` below `root`, of which no part may be a link."""
    descriptor = _open(root, path or ".", _DIRECTORY, resolve=_BENEATH | _NO_LINKS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parents(root: int, path: str, *, follow: bool = True) -> Iterator[int]:
    """Open the directory `path` below `root`, creating missing ones one by one.

    With `follow` False no part of the path may be a link.
    """
    current, done = os.dup(root), ""
    try:
        for name in PurePosixPath(path).parts:
            done = f"{done}/{name}".lstrip("/")
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=current)
            following = _open(root, done, _DIRECTORY, resolve=_BENEATH if follow else _BENEATH | _NO_LINKS)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def replace(
    directory: int, name: str, content: bytes, *, mode: int | None, modified: int | None, durable: bool
) -> None:
    """Write a file in an open directory in one step, in the place of a file or link."""
    fresh = f".{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory
        )
        try:
            before = _mode(directory, name)
            os.fchmod(descriptor, before if mode is None else mode)
            _write_all(descriptor, content, durable=durable)
            if modified is not None:
                os.utime(descriptor, ns=(modified, modified))
        finally:
            os.close(descriptor)
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=directory)
        raise
    if durable:
        os.fsync(directory)


def _write_through(root: int, path: str, content: bytes) -> None:
    """Write to a link's target in place: replacing the link would change its meaning."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = _open(root, path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafePath(f"{path!r} is not a regular file")
        os.ftruncate(descriptor, 0)
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _open(root: int, path: str, flags: int, mode: int = 0, *, resolve: int = _BENEATH) -> int:
    """Open `path` beneath `root`; raises UnsafePath if it leads out."""
    for _ in range(_MAX_ATTEMPTS):
        how = _OpenHow(flags=flags, mode=mode, resolve=resolve)
        name = os.fsencode(path or ".")
        descriptor = int(_libc.syscall(_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how)))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number in {errno.ENOSYS, errno.EPERM}:
            return _walk(root, path, flags, mode)
        if number in {errno.EXDEV, errno.ELOOP}:
            raise UnsafePath(f"{path!r} goes through a link, or leads out of the workspace")
        if number not in {errno.EAGAIN, errno.EINTR}:  # EAGAIN: something was renamed during the resolution
            raise OSError(number, os.strerror(number), path)
    raise UnsafePath(f"{path!r} keeps changing while it is opened")


def _walk(root: int, path: str, flags: int, mode: int) -> int:
    """Open `path` name by name, following no link."""
    names = PurePosixPath(path).parts or (".",)
    current = os.dup(root)
    try:
        for name in names[:-1]:
            following = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = following
        return os.open(names[-1], flags | os.O_NOFOLLOW, mode, dir_fd=current)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise UnsafePath(f"{path!r} goes through a link, which this kernel cannot keep inside") from error
        raise
    finally:
        os.close(current)


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _mode(directory: int, name: str) -> int:
    """Return the mode for a replaced file, without set-id bits."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", name)
    return found.st_mode & 0o777 if stat.S_ISREG(found.st_mode) else 0o644


def read_up_to(descriptor: int, limit: int) -> bytes:
    """Return at most `limit` bytes of an open file."""
    content = bytearray()
    while len(content) < limit and (chunk := os.read(descriptor, min(_CHUNK, limit - len(content)))):
        content += chunk
    return bytes(content)


def _write_all(descriptor: int, content: bytes, *, durable: bool = True) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        os.fsync(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically, also across a power failure."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.rename(path)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
