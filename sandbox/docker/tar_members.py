"""Select and rename the members of a snapshot. Pure, except for the tar files themselves."""

from __future__ import annotations

import posixpath
import tarfile
import zlib
from collections.abc import Mapping
from typing import IO

from sandbox.errors import ProviderRefused, UnsafePath

HOME, ROOT = "home", "root"
"""The two folders of a snapshot."""

MAX_MEMBERS, MAX_BYTES = 500_000, 4 * 1024**3
_PERMISSIONS = 0o777


def repack(member: tarfile.TarInfo, name: str, linked: str) -> tarfile.TarInfo | None:
    """Return a member under another name; None for devices, pipes and sockets."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    entry = tarfile.TarInfo(posixpath.normpath(name))
    entry.type = member.type if not member.isreg() else tarfile.REGTYPE
    entry.size = member.size if member.isreg() else 0
    entry.mtime, entry.mode = member.mtime, member.mode & _PERMISSIONS
    if member.issym():
        entry.linkname = member.linkname
    elif member.islnk():
        entry.linkname = posixpath.normpath(linked)
    return entry


def split_by_folder(archive: IO[bytes], folders: Mapping[str, IO[bytes]], user: str) -> set[str]:
    """Write each folder's members, owned by `user`, as a tar of its own; return the folders with members.

    Raises UnsafePath for a name that leads outside or through a link of the archive, ProviderRefused for an
    archive that is broken or too large.
    """
    tars = {
        name: tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed below
        for name, file in folders.items()
    }
    sorting = FolderSplitter(user)
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as source:
            for member in source:
                accepted = sorting.classify(member)
                if accepted is not None:
                    folder, entry = accepted
                    tars[folder].addfile(entry, source.extractfile(member) if entry.isreg() else None)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ProviderRefused(f"the snapshot is broken: {error}") from error
    finally:
        for tar in tars.values():
            tar.close()
    return sorting.non_empty_folders


class FolderSplitter:
    """The members of an archive that were read so far."""

    def __init__(self, user: str) -> None:
        owner, _, group = user.partition(":")
        self._owner, self._group = int(owner), int(group or owner)
        self._links: set[str] = set()
        self._members = self._bytes = 0
        self.non_empty_folders: set[str] = set()

    def classify(self, member: tarfile.TarInfo) -> tuple[str, tarfile.TarInfo] | None:
        """Return the folder of a member and the member to unpack there; None if it is skipped."""
        folder, name = _split_folder(member.name)
        self._count(member)
        linked = ""
        if member.islnk():
            other, linked = _split_folder(member.linkname)
            if other != folder:
                raise UnsafePath(f"{member.name!r} is a link into another folder")
            self._check_links(linked, itself=True)
        self._check_links(name)
        entry = None if member.issparse() or not name else repack(member, name, linked)
        if entry is None:
            return None
        if entry.issym():
            self._links.add(f"{folder}/{name}")
        else:
            self._links.discard(f"{folder}/{name}")
        entry.uid, entry.gid = self._owner, self._group
        self.non_empty_folders.add(folder)
        return folder, entry

    def _count(self, member: tarfile.TarInfo) -> None:
        self._members += 1
        self._bytes += max(0, member.size)
        if self._members > MAX_MEMBERS or self._bytes > MAX_BYTES:
            raise ProviderRefused("the snapshot unpacks to more than can be restored")

    def _check_links(self, name: str, *, itself: bool = False) -> None:
        """Raise UnsafePath if a name leads through a link of the archive."""
        parts = name.split("/")
        for end in range(1, len(parts) + (1 if itself else 0)):
            beginning = "/".join(parts[:end])
            if {f"{HOME}/{beginning}", f"{ROOT}/{beginning}"} & self._links:
                raise UnsafePath(f"{name!r} goes through a link of the snapshot")


def _split_folder(name: str) -> tuple[str, str]:
    """Return the folder of a member and its name below it; raises UnsafePath."""
    plain = posixpath.normpath(name)
    folder, _, remainder = plain.partition("/")
    if name.startswith("/") or ".." in name.split("/") or folder not in {HOME, ROOT} or "\0" in name:
        raise UnsafePath(f"{name!r} is not a valid path in a snapshot")
    return folder, remainder
