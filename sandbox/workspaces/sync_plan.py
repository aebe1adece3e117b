"""Decide what to sync in which direction from three listings: baseline, store and sandbox.

A file that changed in one replica is copied to the other, and so is its removal. If both changed it, the
newer version wins; a change wins over a removal.

A listing has an entry for each regular file, each link, and each directory that is empty. The path of an
entry is never below another entry, so a link or file that was replaced by a directory is removed before the
directory's files are written: nothing is ever written through a link.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NANOSECONDS_PER_SECOND = 1_000_000_000


class FileStat(NamedTuple):
    """A file in one replica: size in bytes, modification time (nanoseconds), kind and permissions.

    `mode` has permissions for a regular file, S_IFLNK for a link and S_IFDIR for an empty directory, which
    has no size and no time. The content of a link is its target, as it is written in the link. `version`
    identifies its content if the replica has such a value (an ETag); it alone then shows a change.
    """

    size: int
    modified: int
    mode: int
    version: str = ""

    @property
    def is_link(self) -> bool:
        """Whether this is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def is_directory(self) -> bool:
        """Whether this is an empty directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Whether this is neither a link nor a directory."""
        return not (self.is_link or self.is_directory)

    def is_same(self, other: FileStat | None) -> bool:
        """Return whether the same replica shows an unchanged file."""
        if other is not None and stat.S_IFMT(self.mode) != stat.S_IFMT(other.mode):
            return False
        if other is not None and self.version and other.version:
            return self.version == other.version and self.size == other.size
        return self == other

    def same_content(self, other: FileStat) -> bool:
        """Return whether two replicas very likely hold the same content: same size and second of writing.

        A replica with versions does not show the time of writing; content is compared instead.
        """
        if stat.S_IFMT(self.mode) != stat.S_IFMT(other.mode) or self.version or other.version:
            return False
        return (
            self.size == other.size
            and self.modified // NANOSECONDS_PER_SECOND == other.modified // NANOSECONDS_PER_SECOND
        )


FileListing = Mapping[str, FileStat]
"""Files, links and empty directories by their paths below the workspace."""

EMPTY_DIRECTORY = FileStat(0, 0, stat.S_IFDIR)
MAX_TARGET_BYTES = 4095
"""The longest target of a link in bytes, as Linux has it."""


def regular_files(listing: FileListing) -> dict[str, FileStat]:
    """Return the regular files of a listing."""
    return {path: seen for path, seen in listing.items() if seen.is_regular}


def unblocked_paths(paths: Iterable[str], present: FileListing) -> Iterator[str]:
    """Yield the paths that can be written into a replica that holds the `present` ones.

    A path is blocked if a part of it is present as a file or link, or if anything is present below it.
    """
    files = {path for path, seen in present.items() if not seen.is_directory}
    directories = parent_directories(present)
    for path in paths:
        if path not in directories and not any(parent in files for parent in _parents(path)):
            yield path


def parent_directories(paths: Iterable[str]) -> set[str]:
    """Return all directories that have one of the paths in them."""
    found = set[str]()
    for path in paths:
        for parent in _parents(path):
            if parent in found:
                break
            found.add(parent)
    return found


def _parents(path: str) -> Iterator[str]:
    """Yield the directories of a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBaseline:
    """The files that both replicas had after the last sync; `sandbox` is the instance that was synced."""

    sandbox: str = ""
    stored: FileListing = field(default_factory=dict)
    inside: FileListing = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """The paths to sync, by operation."""

    put: tuple[str, ...] = ()
    removed_inside: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    removed_stored: tuple[str, ...] = ()


def plan_sync(
    baseline: SyncBaseline, stored: FileListing, inside: FileListing, *, read_only: bool
) -> SyncPlan:
    """Return the operations that make both replicas equal; with `read_only` none changes the store."""
    ways: dict[str, list[str]] = {"put": [], "removed_inside": [], "fetched": [], "removed_stored": []}
    for path in sorted(stored.keys() | inside.keys()):
        way = _path_action(baseline, path, stored.get(path), inside.get(path))
        if way and not (read_only and way in {"fetched", "removed_stored"}):
            ways[way].append(path)
    return SyncPlan(**{way: tuple(paths) for way, paths in ways.items()})


def _path_action(baseline: SyncBaseline, path: str, stored: FileStat | None, inside: FileStat | None) -> str:
    """Return the operation for one path; None if both replicas agree."""
    here = _is_changed(stored, baseline.stored.get(path))
    there = _is_changed(inside, baseline.inside.get(path))
    if not (here or there):
        return ""
    if stored is None or inside is None:
        return _one_sided_action(stored, inside, stored_changed=here, inside_changed=there)
    if here and there:
        if stored.same_content(inside):
            return ""
        return "put" if stored.modified > inside.modified else "fetched"
    return "put" if here else "fetched"


def _is_changed(now: FileStat | None, before: FileStat | None) -> bool:
    return before is not None if now is None else not now.is_same(before)


def conflicts(baseline: SyncBaseline, stored: FileListing, inside: FileListing) -> list[str]:
    """Return the paths that differ from the baseline in both replicas, though their content may be equal."""
    return [
        path
        for path in stored.keys() & inside.keys()
        if stored[path].size == inside[path].size
        and stored[path].is_regular
        and inside[path].is_regular
        and _is_changed(stored[path], baseline.stored.get(path))
        and _is_changed(inside[path], baseline.inside.get(path))
    ]


def _one_sided_action(
    stored: FileStat | None, inside: FileStat | None, *, stored_changed: bool, inside_changed: bool
) -> str:
    """Return the operation for a path that one replica lacks: a change wins over a removal."""
    if stored is not None:
        return "put" if stored_changed else "removed_stored"
    if inside is not None:
        return "fetched" if inside_changed else "removed_inside"
    return ""


def fit_within(paths: tuple[str, ...], sizes: FileListing, *, limit: int) -> Iterator[str]:
    """Yield the paths, the smallest first, that together stay within `limit` bytes."""
    room = limit
    for path in sorted(paths, key=lambda one: (sizes[one].size, one)):
        room -= sizes[path].size
        if room < 0:
            return
        yield path
