"""Removing what commands made: neither permissions nor depth keep it on the disk, and no link is followed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from sandbox.workspaces.removal import remove_tree

UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Begins a command for which permissions of files count, as for a gateway that is not root."""

REMOVE = "import sys; from sandbox.workspaces.removal import remove_tree; remove_tree(sys.argv[1])"


async def test_directories_that_forbid_everything_are_removed(tmp_path: Path) -> None:
    """Their owner gives himself the permissions back, also where they are one in the other."""
    tree = tmp_path / "tree"
    inner = tree / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (tree / "read only").mkdir()
    (tree / "read only" / "file").write_text("x")
    for path, mode in ((inner, 0), (inner.parent, 0), (tree / "read only", 0o555), (tree, 0o500)):
        path.chmod(mode)
    command = await asyncio.create_subprocess_exec(*UNPRIVILEGED, sys.executable, "-c", REMOVE, str(tree))
    assert await command.wait() == 0
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - in a coroutine


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """It may be deeper than Python's stack, and than a path may be long."""
    tree = tmp_path / "tree"
    tree.mkdir()
    with contextlib.chdir(tree):
        for _ in range(2500):
            Path("d").mkdir()
            Path("file").touch()
            os.chdir("d")
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """What they lead to stays; a link in the place of the directory is refused."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept", "link"]


def test_a_directory_that_does_not_exist_is_no_error(tmp_path: Path) -> None:
    """A second removal does nothing."""
    remove_tree(tmp_path / "missing")


async def test_the_files_of_a_deleted_workspace_are_gone(tmp_path: Path) -> None:
    """The store removes a directory in which a command took all permissions away."""
    script = (
        "import asyncio, pathlib, sys; from sandbox.workspaces import directory_store; "
        "store = directory_store.DirectoryWorkspaceStore(pathlib.Path(sys.argv[1])); "
        "asyncio.run(store.delete('space'))"
    )
    closed = tmp_path / "space" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("private")
    closed.chmod(0)
    command = await asyncio.create_subprocess_exec(*UNPRIVILEGED, sys.executable, "-c", script, str(tmp_path))
    assert await command.wait() == 0
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - in a coroutine
