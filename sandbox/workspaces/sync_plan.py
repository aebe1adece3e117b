"""What has to be carried which way, decided from three lists: what was, what is stored, what is inside.

A file that changed on one side goes to the other, and so does its absence. Where both sides changed, the one
written later stays; one that was written stays over one that was removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SECOND = 1_000_000_000


class Seen(NamedTuple):
    """A regular file as one side shows it: bytes, when it was written (nanoseconds), permissions.

    `mark` is the version of its content where the side has such (an ETag): then it alone tells a change.
    """

    size: int
    modified: int
    mode: int
    mark: str = ""

    def is_same(self, other: Seen | None) -> bool:
        """Whether the same side shows the same file as before."""
        if other is not None and self.mark and other.mark:
            return self.mark == other.mark and self.size == other.size
        return self == other

    def is_like(self, other: Seen) -> bool:
        """Whether two sides most likely hold the same content: same size, written in the same second.

        Where one has marks it is not the time of writing that it shows, and content is compared instead.
        """
        if self.mark or other.mark:
            return False
        return self.size == other.size and self.modified // SECOND == other.modified // SECOND


Listing = Mapping[str, Seen]
"""Paths below the workspace, and what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What both sides held when they last agreed; `sandbox` is the machine that was the other side."""

    sandbox: str = ""
    stored: Listing = field(default_factory=dict)
    inside: Listing = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Paths to carry, by what is done with them."""

    put: tuple[str, ...] = ()
    removed_inside: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    removed_stored: tuple[str, ...] = ()


def plan(base: Base, stored: Listing, inside: Listing, *, read_only: bool) -> Plan:
    """Return what makes both sides the same; `read_only`: nothing is carried to the store."""
    ways: dict[str, list[str]] = {"put": [], "removed_inside": [], "fetched": [], "removed_stored": []}
    for path in sorted(stored.keys() | inside.keys()):
        way = _way(base, path, stored.get(path), inside.get(path))
        if way and not (read_only and way in {"fetched", "removed_stored"}):
            ways[way].append(path)
    return Plan(**{way: tuple(paths) for way, paths in ways.items()})


def _way(base: Base, path: str, stored: Seen | None, inside: Seen | None) -> str:
    """Return what is to be done with one path; nothing where both sides agree."""
    here = _is_changed(stored, base.stored.get(path))
    there = _is_changed(inside, base.inside.get(path))
    if not (here or there):
        return ""
    if stored is None or inside is None:
        return _absent(stored, inside, here=here, there=there)
    if here and there:
        if stored.is_like(inside):
            return ""
        return "put" if stored.modified > inside.modified else "fetched"
    return "put" if here else "fetched"


def _is_changed(now: Seen | None, before: Seen | None) -> bool:
    return before is not None if now is None else not now.is_same(before)


def disputed(base: Base, stored: Listing, inside: Listing) -> list[str]:
    """Return the paths that differ from what was agreed on both sides, though both may hold the same."""
    return [
        path
        for path in stored.keys() & inside.keys()
        if stored[path].size == inside[path].size
        and _is_changed(stored[path], base.stored.get(path))
        and _is_changed(inside[path], base.inside.get(path))
    ]


def _absent(stored: Seen | None, inside: Seen | None, *, here: bool, there: bool) -> str:
    """Return what becomes of a path that one side lacks: what was written since outlives a removal."""
    if stored is not None:
        return "put" if here else "removed_stored"
    if inside is not None:
        return "fetched" if there else "removed_inside"
    return ""


def bounded(paths: tuple[str, ...], sizes: Listing, *, limit: int) -> Iterator[str]:
    """Yield the paths, the smallest first, that together stay within `limit` bytes."""
    room = limit
    for path in sorted(paths, key=lambda one: (sizes[one].size, one)):
        room -= sizes[path].size
        if room < 0:
            return
        yield path
