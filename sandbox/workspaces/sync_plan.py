"""What has to be carried which way, decided from three lists: what was, what is stored, what is inside.

A file that changed on one side goes to the other, and so does its absence. Where both sides changed, the one
written later stays; one that was written stays over one that was removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NANOSECONDS_PER_SECOND = 1_000_000_000


class FileStat(NamedTuple):
    """A regular file as one side shows it: bytes, when it was written (nanoseconds), permissions.

    `mark` is the version of its content where the side has such (an ETag): then it alone tells a change.
    """

    size: int
    modified: int
    mode: int
    version: str = ""

    def is_same(self, other: FileStat | None) -> bool:
        """Whether the same side shows the same file as before."""
        if other is not None and self.version and other.version:
            return self.version == other.version and self.size == other.size
        return self == other

    def same_content(self, other: FileStat) -> bool:
        """Whether two sides most likely hold the same content: same size, written in the same second.

        Where one has marks it is not the time of writing that it shows, and content is compared instead.
        """
        if self.version or other.version:
            return False
        return (
            self.size == other.size
            and self.modified // NANOSECONDS_PER_SECOND == other.modified // NANOSECONDS_PER_SECOND
        )


FileListing = Mapping[str, FileStat]
"""Paths below the workspace, and what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBaseline:
    """What both sides held when they last agreed; `sandbox` is the machine that was the other side."""

    sandbox: str = ""
    stored: FileListing = field(default_factory=dict)
    inside: FileListing = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """Paths to carry, by what is done with them."""

    put: tuple[str, ...] = ()
    removed_inside: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    removed_stored: tuple[str, ...] = ()


def plan_sync(
    baseline: SyncBaseline, stored: FileListing, inside: FileListing, *, read_only: bool
) -> SyncPlan:
    """Return what makes both sides the same; `read_only`: nothing is carried to the store."""
    ways: dict[str, list[str]] = {"put": [], "removed_inside": [], "fetched": [], "removed_stored": []}
    for path in sorted(stored.keys() | inside.keys()):
        way = _path_action(baseline, path, stored.get(path), inside.get(path))
        if way and not (read_only and way in {"fetched", "removed_stored"}):
            ways[way].append(path)
    return SyncPlan(**{way: tuple(paths) for way, paths in ways.items()})


def _path_action(baseline: SyncBaseline, path: str, stored: FileStat | None, inside: FileStat | None) -> str:
    """Return what is to be done with one path; nothing where both sides agree."""
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
    """Return the paths that differ from what was agreed on both sides, though both may hold the same."""
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
    """Return what becomes of a path that one side lacks: what was written since outlives a removal."""
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
