"""Paths of workspace files stay below the workspace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry, relative_path

MOUNT = "/mnt/workspaces/one"


@pytest.mark.parametrize(
    "path",
    ["..", "../other", "a/../../other", "./..", "/etc/passwd", f"{MOUNT}/../other", f"{MOUNT}x/a", "a\0b"],
)
def test_a_path_outside_the_workspace_is_refused(path: str) -> None:
    """Paths that climb out, name another directory or contain NUL raise UnsafePath."""
    with pytest.raises(UnsafePath):
        relative_path(path, MOUNT)


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("a/b", "a/b"),
        ("./a", "a"),
        ("a/../b", "b"),
        ("", "."),
        (MOUNT, "."),
        (f"{MOUNT}/a", "a"),
        ("..a", "..a"),
    ],
)
def test_a_path_in_the_workspace_is_relative(path: str, relative: str) -> None:
    """Relative paths, and absolute ones below the mount, are returned relative to the workspace."""
    assert relative_path(path, MOUNT) == relative


@given(path=st.text("./a\\", max_size=12))
def test_no_path_climbs_out(path: str) -> None:
    """Any text is refused, or becomes a path without a leading `..` or slash."""
    try:
        found = relative_path(path, MOUNT)
    except UnsafePath:
        return
    assert found.split("/")[0] not in {"", ".."}


@pytest.mark.parametrize(
    ("seconds", "year"), [(0.0, 1970), (1e18, 9000), (-1e18, 1900), (math.inf, 9000), (math.nan, 1900)]
)
def test_a_file_has_a_time_whatever_a_program_set(seconds: float, year: int) -> None:
    """Times before 1900 and after 9000 are those years."""
    entry = FileEntry(name="a", kind="file", size=0, modified=seconds, changed=seconds)
    assert entry.modified_at.year == entry.changed_at.year == year
