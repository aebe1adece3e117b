"""Decide what to sync in which direction from three listings: baseline, store and sandbox.

A file that changed in one replica is copied to the other, and so is its removal. If both changed it, the
newer version wins; a change wins over a removal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NANOSECONDS_PER_SECOND = 1_000_000_000


class FileStat(NamedTuple):
    """A regular file in one replica: size in bytes, modification time (nanoseconds), permissions.

    `version` identifies its content if the replica has such a value (an ETag); it alone then shows a change.
    """

    size: int
    modified: int
    mode: int
    version: str = ""

    def is_same(self, other: FileStat | None) -> bool:
        """Return whether the same replica shows an unchanged file."""
        if other is not None and self.version and other.version:
            return self.version == other.version and self.size == other.size
        return self == other

    def same_content(self, other: FileStat) -> bool:
        """Return whether two replicas very likely hold the same content: same size and second of writing.

        A replica with versions does not show the time of writing; content is compared instead.
        """
        if self.version or other.version:
            return False
        return (
            self.size == other.size
            and self.modified // NANOSECONDS_PER_SECOND == other.modified // NANOSECONDS_PER_SECOND
        )


FileListing = Mapping[str, FileStat]
"""Files by their paths below the workspace."""


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
