"""Directories one in the other, more than Python's stack can take, make no operation fail."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import run_command_line
from sandbox.errors import UnsafePath
from sandbox.snapshots import archive
from sandbox.workspaces import bounded_walk, local_tree
from sandbox.workspaces.bounded_walk import MAX_DEPTH, DirectoryMoved
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.disk_quota import Quota
from sandbox.workspaces.removal import remove_tree


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Return a directory with a file, and with 2500 directories one in the other."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # that of a gateway; hypothesis raises it
    deep = tmp_path / "data" / "workspaces"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    with contextlib.chdir(deep):
        for _ in range(2500):
            Path("d").mkdir()
            os.chdir("d")
        Path("lowest").write_bytes(b"x" * 1_000_000)
    yield deep
    remove_tree(deep)  # pytest's own removal is recursive
    sys.setrecursionlimit(before)


async def test_a_workspace_of_any_depth_is_listed(deep: Path) -> None:
    """What is below the limit is not."""
    assert list(await DirectoryReplica(deep).list()) == ["file"]


def test_a_home_of_any_depth_is_saved(deep: Path) -> None:
    """What is below the limit is not."""
    packed = io.BytesIO()
    archive.pack(deep, "home", packed, limit=1000)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        names = tar.getnames()
    assert "home/file" in names
    assert len(names) == MAX_DEPTH + 2


def test_a_workspace_of_any_depth_is_backed_up(deep: Path, tmp_path: Path) -> None:
    """What has no path is counted and named."""
    data = str(deep.parent)
    assert run_command_line("migrate", "up", "--data", data).exit_code == 0
    done = run_command_line("backup", str(tmp_path / "copy"), "--data", data)
    assert (done.exit_code, "1 files are missing" in done.stderr) == (0, True), done.output
    assert (tmp_path / "copy" / "workspaces" / "file").exists()
    remove_tree(tmp_path / "copy")


def test_a_workspace_of_any_depth_is_measured(deep: Path) -> None:
    """The quota counts the file in the lowest directory."""
    (deep / "e" / "f").mkdir(parents=True)
    (deep / "e" / "f" / "beside").write_bytes(b"x" * 1_000_000)
    assert 2_000_000 < Quota(directory=deep, limit=1).used() < 2_000_000 + 2510 * 8192


def test_a_measurement_whose_directories_move_says_so(tmp_path: Path) -> None:
    """It cannot return to what is not counted yet, and never leaves the workspace."""
    space = tmp_path / "space"
    (space / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    walk = bounded_walk.statuses(space)
    next(walk)
    next(walk)
    (space / "a" / "b" / "file").touch()
    next(walk)
    (space / "a" / "b").rename(tmp_path / "elsewhere" / "b")
    with pytest.raises(DirectoryMoved):
        next(walk)


def test_a_directory_without_permissions_is_no_error(tmp_path: Path) -> None:
    """One that can be listed and not searched, and one that is gone, end no measurement."""
    locked = tmp_path / "space" / "locked"
    (locked / "below").mkdir(parents=True)
    locked.chmod(0o400)
    assert Quota(directory=tmp_path / "space", limit=1).used() < 100_000
    locked.chmod(0o700)
    assert Quota(directory=tmp_path / "gone", limit=1).used() == 0


def test_a_directory_that_is_too_deep_is_not_copied(deep: Path) -> None:
    """The refusal says why, and nothing is left of the copy; one that is not as deep is copied."""
    with pytest.raises(UnsafePath, match=f"more than {MAX_DEPTH} levels"):
        local_tree.copy(deep, "d", "copy")
    assert sorted(one.name for one in deep.iterdir()) == ["d", "file"]
    (deep / "/".join(["e"] * MAX_DEPTH)).mkdir(parents=True)
    local_tree.copy(deep, "e", "copy")
    assert (deep / "copy" / "/".join(["e"] * (MAX_DEPTH - 1))).is_dir()
