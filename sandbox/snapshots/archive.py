"""Archive files that a sandbox wrote without following links, and unpack archives without trusting names.

Programs in the sandbox may change the files during the archiving and may be hostile: directories are walked
by descriptors, files are opened without following links, and a whole archive is validated before anything of
it is unpacked.
"""

from __future__ import annotations

import gzip
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sandbox.errors import ProviderRefused, UnsafePath
from sandbox.workspaces.bounded_walk import walk

MAX_MEMBERS = 500_000
SYSTEM_PATHS = ("/usr/", "/bin/", "/lib/", "/lib64/", "/opt/runtimes/")
"""Targets of links that are allowed besides the archive: read-only in every sandbox (a venv's python)."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20
_PERMISSIONS = 0o777


def pack(directory: Path, top: str, into: IO[bytes], *, limit: int) -> None:
    """Write a gzip tar of a directory's content below `top`; the same files always give the same bytes.

    Sockets, devices and links that lead out are skipped. Raises ProviderRefused above `limit` bytes of
    content.
    """
    with (
        gzip.GzipFile(fileobj=into, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        remaining = limit
        for parent, names, files, descriptor in walk(directory):
            names.sort()
            below = Path(parent).relative_to(directory).as_posix()
            for name in sorted([*names, *files]):
                path = posixpath.normpath(posixpath.join(top, below, name))
                remaining -= _add(tar, path, name, descriptor, top=top, remaining=remaining)


def _add(tar: tarfile.TarFile, path: str, name: str, parent: int, *, top: str, remaining: int) -> int:
    """Add one entry of an open directory; return the bytes it took."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0
    member = _member(path, status)
    if stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
        if _leads_out(member, top):
            return 0
    elif stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        return _add_file(tar, member, name, parent, remaining)
    else:
        return 0
    tar.addfile(member)
    return 0


def _member(path: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(status.st_mode) & _PERMISSIONS
    member.mtime = int(status.st_mtime)
    return member


def _add_file(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int, remaining: int) -> int:
    try:
        descriptor = os.open(name, _READ, dir_fd=parent)
    except OSError:  # deleted or replaced by a link since, or not readable
        return 0
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return 0
        if status.st_size > remaining:
            raise ProviderRefused("the sandbox's files exceed the size limit of a snapshot")
        member.size = status.st_size
        tar.addfile(member, _FixedSizeFile(file, status.st_size))
    return status.st_size


class _FixedSizeFile:
    """A file that yields exactly its initial size, even if it changes while it is read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; zeros if the file has become shorter."""
        wanted = self._left if size < 0 else min(size, self._left)
        chunk = self._file.read(wanted)
        self._left -= wanted
        return chunk + b"\0" * (wanted - len(chunk))


def validate(archive: Path, *, limit: int) -> None:
    """Read an archive until its end without unpacking it; raises UnsafePath with the first problem."""
    links: set[str] = set()
    left, count = limit, 0
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            for member in tar:
                left, count = left - member.size, count + 1
                if left < 0 or count > MAX_MEMBERS:
                    raise UnsafePath("the snapshot exceeds its size limit")
                _validate_member(member, links)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UnsafePath(f"the snapshot cannot be read: {error}") from error


def _validate_member(member: tarfile.TarInfo, links: set[str]) -> None:
    path = posixpath.normpath(member.name)
    if member.name.startswith("/") or path.startswith("../") or path == ".." or "\0" in member.name:
        raise UnsafePath(f"the snapshot holds a path that leads out: {member.name[:80]!r}")
    if any(parent in links for parent in _parents(path)) or path in links:
        raise UnsafePath(f"the snapshot writes through a link: {member.name[:80]!r}")
    if member.issym():
        if _leads_out(member, path.split("/", 1)[0]):
            raise UnsafePath(f"the snapshot holds a link that leads out: {member.name[:80]!r}")
        links.add(path)
    elif not (member.isreg() or member.isdir()):
        raise UnsafePath(f"the snapshot holds neither file, directory nor link: {member.name[:80]!r}")


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _leads_out(member: tarfile.TarInfo, top: str) -> bool:
    target = member.linkname
    if target.startswith("/"):
        return not posixpath.normpath(target).startswith(SYSTEM_PATHS)
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), target))
    return reached != top and not reached.startswith(f"{top}/")


def unpack(archive: Path, into: Path, *, top: str, limit: int) -> None:
    """Unpack the members below `top` into an empty directory of our own; raises UnsafePath.

    The filters of `tarfile` are newer than Python 3.11.2, so the files are written here.
    """
    validate(archive, limit=limit)
    with tarfile.open(archive, mode="r:gz") as tar:
        for member in tar:
            path = posixpath.normpath(member.name)
            if path.startswith(f"{top}/"):
                _unpack_member(tar, member, into / path[len(top) + 1 :])


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        target.mkdir(exist_ok=True)
        return
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    else:
        _write_file(tar, member, target)


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a file that only its owner may write; no bit of setuid, setgid or sticky survives."""
    content = tar.extractfile(member)
    assert content is not None, "a regular file"
    with content, target.open("xb") as file:
        shutil.copyfileobj(content, file, _CHUNK)
        os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
    os.utime(target, (member.mtime, member.mtime))
