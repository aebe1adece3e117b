"""Entry points of installed packages, read once: each reading opens the metadata of all packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoints, entry_points


@cache
def read_installed() -> Callable[..., EntryPoints]:
    """Read the entry points of all installed packages; returns a function that selects some of them."""
    return entry_points().select


def installed_entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group."""
    return read_installed()(group=group)
