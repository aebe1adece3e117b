"""Directories one in the other, more than Python's stack can take, make no operation fail."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import run_command_line
from sandbox.snapshots import archive
from sandbox.workspaces.bounded_walk import MAX_DEPTH
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.removal import remove_tree


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Return a directory with a file, and with 2500 directories one in the other."""
    deep = tmp_path / "data" / "workspaces"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    with contextlib.chdir(deep):
        for _ in range(2500):
            Path("d").mkdir()
            os.chdir("d")
    yield deep
    remove_tree(deep)  # pytest's own removal is recursive


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
