"""A workspace's directory in the store, which commands of another sandbox may be changing right now."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from sandbox.errors import SandboxError
from sandbox.host import files
from sandbox.sync import inside
from sandbox.sync.plan import Listing, Seen


def listing(directory: Path) -> Listing:
    """Return the regular files below a directory; no link is followed; raises OSError."""
    directory.stat()
    return dict(_listed(directory))


def _listed(directory: Path) -> Iterator[tuple[str, Seen]]:
    for parent, names, plain, descriptor in os.fwalk(directory, follow_symlinks=False):
        if inside.STAGE in names:
            names.remove(inside.STAGE)
        below = Path(parent).relative_to(directory)
        for name in plain:
            path, seen = (below / name).as_posix(), _seen(descriptor, name)
            if seen is not None and inside.is_plain(path) and _is_text(path):
                yield path, seen


def _is_text(path: str) -> bool:
    """Whether a name is UTF-8, so that tools and HTTP can name it."""
    return not any("\udc80" <= letter <= "\udcff" for letter in path)


def _seen(parent: int, name: str) -> Seen | None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Seen(status.st_size, status.st_mtime_ns, status.st_mode & 0o755)


def pack(directory: Path, wanted: Listing, into: IO[bytes]) -> Listing:
    """Write the wanted files into a tar, and return how they will look in the sandbox."""
    return inside.packed(_contents(directory, wanted), into)


def _contents(directory: Path, wanted: Listing) -> Iterator[tuple[str, bytes, Seen]]:
    for path, seen in wanted.items():
        try:
            content = files.read(directory, path, seen.size + 1)
        except (OSError, SandboxError):
            continue  # gone meanwhile, or no file any more: it is seen again next time
        if len(content) <= seen.size:
            yield path, content, seen


def unpack(directory: Path, archive: IO[bytes], wanted: Listing) -> Sequence[str]:
    """Write the wanted files of a fetched tar into the store; returns those that could be written."""
    written = []
    for path, content in inside.unpacked(archive, wanted):
        seen = wanted[path]
        try:
            files.write(directory, path, content, mode=seen.mode | 0o600, modified=seen.modified)
        except (OSError, SandboxError):
            continue  # a directory is in the way, or a link leads out: both sides stay as they are
        written.append(path)
    return written


def remove(directory: Path, paths: Sequence[str]) -> None:
    """Remove files from the store, and the directories that are empty then."""
    for path in paths:
        try:
            files.remove(directory, path)
            _prune(directory, path)
        except (OSError, SandboxError):
            continue


def _prune(directory: Path, path: str) -> None:
    while path := posixpath.dirname(path):
        if files.entries(directory, path):
            return
        files.remove(directory, path)
