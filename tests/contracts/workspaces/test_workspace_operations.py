"""Every workspace store describes, creates, renames and copies files alike, and never outside a workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.sync_plan import EMPTY_DIRECTORY

SPACE = "space"


async def _names(store: WorkspaceStore, path: str = ".") -> list[str]:
    return [one.name for one in await store.list_directory(SPACE, path)]


def _shape(entry: FileEntry) -> tuple[str, str, int]:
    return entry.name, entry.kind, entry.size


async def test_a_path_is_described(store: WorkspaceStore) -> None:
    """A file with its size, a directory, the workspace itself; what is missing raises an error."""
    await store.write(SPACE, "d/file", b"1234")
    assert _shape(await store.stat(SPACE, "d/file")) == ("file", "file", 4)
    assert (await store.stat(SPACE, "d/file")).modified > 1_600_000_000
    assert (await store.stat(SPACE, "d")).kind == "directory"
    assert (await store.stat(SPACE, ".")).kind == "directory"
    for path in ("none", "d/none", "none/below"):
        with pytest.raises(FileNotFoundError):
            await store.stat(SPACE, path)
    with pytest.raises(NotADirectoryError):
        await store.stat(SPACE, "d/file/below")


async def test_an_empty_directory_is_kept(store: WorkspaceStore) -> None:
    """It is listed, described and removed; creating it again changes nothing."""
    for _ in range(2):
        await store.mkdir(SPACE, "a/b")
    assert await _names(store) == ["a"]
    assert await _names(store, "a") == ["b"]
    assert await _names(store, "a/b") == []
    assert _shape(await store.stat(SPACE, "a/b"))[1] == "directory"
    assert await store.replica(SPACE).list() == {"a/b": EMPTY_DIRECTORY}
    await store.write(SPACE, "a/b/file", b"x")
    await store.remove(SPACE, "a/b/file")
    assert await _names(store, "a/b") == []
    await store.remove(SPACE, "a")
    assert await _names(store) == []


async def test_a_file_in_the_way_is_no_directory(store: WorkspaceStore) -> None:
    """Neither at the path nor above it."""
    await store.write(SPACE, "file", b"x")
    with pytest.raises(FileExistsError):
        await store.mkdir(SPACE, "file")
    with pytest.raises((NotADirectoryError, UnsafePath)):
        await store.mkdir(SPACE, "file/below")
    with pytest.raises((NotADirectoryError, UnsafePath)):
        await store.rename(SPACE, "file", "file2/../file3/x/../../file/y")
    assert await store.read(SPACE, "file", 9) == b"x"


async def test_a_file_and_a_directory_are_renamed(store: WorkspaceStore) -> None:
    """Into directories that are created; the old path is free, the content and empty directories remain."""
    await store.write(SPACE, "one", b"1")
    await store.write(SPACE, "d/e/two", b"2")
    await store.mkdir(SPACE, "d/empty")
    await store.rename(SPACE, "one", "new/place/uno")
    await store.rename(SPACE, "d", "new/d")
    assert await _names(store) == ["new"]
    assert sorted(await store.replica(SPACE).list()) == ["new/d/e/two", "new/d/empty", "new/place/uno"]
    assert await _names(store, "new/d") == ["e", "empty"]
    assert await store.read(SPACE, "new/d/e/two", 9) == b"2"


async def test_a_file_and_a_directory_are_copied(store: WorkspaceStore) -> None:
    """The original stays; a change of the copy does not change it."""
    await store.write(SPACE, "d/e/two", b"2")
    await store.mkdir(SPACE, "d/empty")
    await store.copy(SPACE, "d/e/two", "three")
    await store.copy(SPACE, "d", "c/d")
    assert await store.read(SPACE, "three", 9) == b"2"
    assert await _names(store, "c/d") == ["e", "empty"]
    await store.write(SPACE, "c/d/e/two", b"changed")
    assert await store.read(SPACE, "d/e/two", 9) == b"2"
    listed = sorted(await store.replica(SPACE).list())
    assert listed == ["c/d/e/two", "c/d/empty", "d/e/two", "d/empty", "three"]


@pytest.mark.parametrize("move", ["rename", "copy"])
async def test_nothing_is_replaced(store: WorkspaceStore, move: str) -> None:
    """A taken path, a missing source, a directory into itself and the workspace itself are refused."""
    await store.write(SPACE, "d/file", b"1")
    await store.write(SPACE, "other", b"2")
    operation = getattr(store, move)
    for target in ("other", "d"):
        with pytest.raises(OSError, match=r"exists|itself"):
            await operation(SPACE, "d/file" if target == "d" else "d", target)
    for target in ("d", "d/below/deeper"):
        with pytest.raises(OSError, match="itself"):
            await operation(SPACE, "d", target)
    with pytest.raises(FileNotFoundError):
        await operation(SPACE, "none", "free")
    for path, target in ((".", "free"), ("d", ".")):
        with pytest.raises(UnsafePath):
            await operation(SPACE, path, target)
    assert sorted(await store.replica(SPACE).list()) == ["d/file", "other"]


@pytest.mark.parametrize("path", ["../other/secret", "a/../../other/secret"])
async def test_no_operation_leads_out(store: WorkspaceStore, path: str) -> None:
    """Whatever came before has checked the paths; the store does it as well."""
    await store.write("other", "secret", b"theirs")
    await store.write(SPACE, "a/mine", b"mine")
    for operation, given in (
        (store.stat, (path,)),
        (store.mkdir, (path + "/new",)),
        (store.rename, (path, "stolen")),
        (store.rename, ("a/mine", path + "2")),
        (store.copy, (path, "stolen")),
        (store.copy, ("a/mine", path + "2")),
    ):
        with pytest.raises((UnsafePath, FileNotFoundError)):
            await operation(SPACE, *given)
    assert [one.name for one in await store.list_directory("other", ".")] == ["secret"]
    assert await _names(store) == ["a"]


async def test_links_are_neither_followed_nor_lost(tmp_path: Path) -> None:
    """A link is described, renamed and copied itself; a path through one that leads out is refused."""
    store = DirectoryWorkspaceStore(tmp_path / "store")
    inside, outside = store.directory(SPACE), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"theirs")
    (inside / "d").mkdir()
    (inside / "d" / "up").symlink_to(outside)
    assert (await store.stat(SPACE, "d/up")).kind == "link"
    await store.copy(SPACE, "d", "c")
    await store.rename(SPACE, "d/up", "moved")
    assert [(inside / name).is_symlink() for name in ("c/up", "moved")] == [True, True]
    for operation, given in (
        (store.stat, ("moved/secret",)),
        (store.mkdir, ("moved/new",)),
        (store.copy, ("moved/secret", "stolen")),
        (store.rename, ("moved/secret", "stolen")),
        (store.rename, ("c", "moved/c")),
        (store.copy, ("c", "moved/c")),
    ):
        with pytest.raises(UnsafePath):
            await operation(SPACE, *given)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert sorted(path.name for path in inside.iterdir()) == ["c", "d", "moved"]


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither at its path nor under a temporary name."""
    store = DirectoryWorkspaceStore(tmp_path / "store")
    inside = store.directory(SPACE)
    await store.write(SPACE, "d/file", b"x")
    await store.write(SPACE, "taken", b"y")
    with pytest.raises(FileExistsError):
        await store.copy(SPACE, "d", "taken")
    assert sorted(path.name for path in inside.iterdir()) == ["d", "taken"]
