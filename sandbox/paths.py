"""Check the paths of workspace files, and describe directory entries."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from sandbox.errors import UnsafePath


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
