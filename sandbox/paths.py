"""Check the paths of workspace files and of mounted directories, and describe directory entries."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandbox.errors import ProviderRefused, UnsafePath
from sandbox.model import BindMount

_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """An entry of a workspace directory; `kind` is file, directory, link or other.

    `changed` is the time of the last change of any kind. Programs cannot set it; they can set `modified`.
    """

    name: str
    kind: str
    size: int
    modified: float
    changed: float

    @property
    def modified_at(self) -> datetime:
        """The time of the last change of the content; programs can set it to any time."""
        return file_time(self.modified)

    @property
    def changed_at(self) -> datetime:
        """The time of the last change of any kind."""
        return file_time(self.changed)


def file_time(seconds: float) -> datetime:
    """Return a file's time from seconds since 1970, limited to the years 1900 to 9000.

    A file system keeps times that no datetime has, and a program may set them.
    """
    return datetime.fromtimestamp(min(_LATEST.timestamp(), max(_EARLIEST.timestamp(), seconds)), UTC)


def relative_path(path: str, mount: str) -> str:
    """Return `path` relative to the workspace; an absolute path must begin with the workspace's mount."""
    if "\0" in path:
        raise UnsafePath("a path must not contain NUL")
    if path == mount or path.startswith(f"{mount}/"):
        path = path[len(mount) :].lstrip("/")
    if path.startswith("/"):
        raise UnsafePath(f"{path!r} is outside the workspace: use a path relative to it")
    plain = posixpath.normpath(path or ".")
    if plain.split("/")[0] == "..":
        raise UnsafePath(f"{path!r} leads out of the workspace")
    return plain


def check_source(mount: BindMount) -> Path:
    """Return the directory to mount; raises ProviderRefused unless it is a directory and no link leads to it.

    The operator lists real paths. A link in one could lead to a directory that the operator did not list.
    """
    source = Path(mount.source)
    if not source.is_absolute() or source.resolve() != source:
        raise ProviderRefused(
            f"{mount.source!r} cannot be mounted: it goes through a link; the operator lists real paths"
        )
    if not source.is_dir():
        raise ProviderRefused(
            f"{mount.source!r} cannot be mounted: there is no such directory on this machine"
        )
    return source
