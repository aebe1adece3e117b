"""Every workspace store keeps files by path, refuses invalid paths, and can be synced both ways."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.environments.stored_workspace import StoredWorkspace
from s3_servers import open_empty_store
from sandbox.errors import ProviderRefused, SandboxError, UnsafePath
from sandbox.s3 import open_client
from sandbox.testing.names import HOSTILE_NAMES
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.replica import ReplicaFile
from sandbox.workspaces.s3.store import S3WorkspaceStore
from sandbox.workspaces.sync_plan import (
    EMPTY_DIRECTORY,
    NANOSECONDS_PER_SECOND,
    FileListing,
    FileStat,
    regular_files,
)

SPACE = "space"


async def _given(*files: ReplicaFile) -> AsyncIterator[ReplicaFile]:
    for file in files:
        yield file


async def _contents(store: WorkspaceStore, wanted: FileListing) -> dict[str, bytes]:
    return {path: content async for path, content, _seen in store.replica(SPACE).read(wanted)}


async def test_what_is_written_is_read(store: WorkspaceStore) -> None:
    """Byte for byte, from the beginning as far as asked for, written over whole, also with odd names."""
    large = os.urandom(3_000_000)
    for path, content in {"a/b/large": large, "empty": b"", "a/é ?#%+.txt": b"\0odd", "-rf": b"-"}.items():
        await store.write(SPACE, path, content)
        assert await store.read(SPACE, path, 4_000_000) == content
    assert await store.read(SPACE, "a/b/large", 10) == large[:10]
    await store.write(SPACE, "empty", b"full")
    assert await store.read(SPACE, "empty", 99) == b"full"
    assert await store.read(SPACE, "empty", 0) == b""


async def test_a_file_may_have_any_name(store: WorkspaceStore) -> None:
    """It is listed, read, given to a sync and removed by that name."""
    names: tuple[str, ...] = HOSTILE_NAMES
    if isinstance(store, S3WorkspaceStore):  # the server of this test has no objects with a line feed
        names = tuple(name for name in names if "\n" not in name)
    for name in names:
        await store.write(SPACE, f"d/{name}", name.encode())
    listed = [one.name for one in await store.list_directory(SPACE, "d")]
    assert sorted(listed) == sorted(names)
    contents = await _contents(store, await store.replica(SPACE).list())
    assert contents == {f"d/{name}": name.encode() for name in names}
    for name in names:
        assert await store.read(SPACE, f"d/{name}", 1000) == name.encode()
        await store.remove(SPACE, f"d/{name}")
    assert regular_files(await store.replica(SPACE).list()) == {}


async def test_directories_are_listed(store: WorkspaceStore) -> None:
    """By name, with kinds and sizes; an empty workspace is an empty list, another's files are not seen."""
    assert list(await store.list_directory(SPACE, ".")) == []
    for path in ("b/one", "b/c/two", "a", "b.txt"):
        await store.write(SPACE, path, b"1234")
    await store.write("other", "secret", b"")
    reported = [
        (one.name, one.kind, one.size) for one in await store.list_directory(SPACE, ".") if one.kind == "file"
    ]
    assert reported == [("a", "file", 4), ("b.txt", "file", 4)]
    assert [(one.name, one.kind) for one in await store.list_directory(SPACE, "b")] == [
        ("c", "directory"),
        ("one", "file"),
    ]
    newest = max(one.modified for one in await store.list_directory(SPACE, "b"))
    assert newest > 1_600_000_000


async def test_files_and_directories_are_distinguished(store: WorkspaceStore) -> None:
    """As a file system does it, so that callers do not depend on the kind of store."""
    await store.write(SPACE, "d/file", b"x")
    with pytest.raises(IsADirectoryError):
        await store.read(SPACE, "d", 9)
    with pytest.raises(IsADirectoryError):
        await store.read(SPACE, ".", 9)
    with pytest.raises(IsADirectoryError):
        await store.write(SPACE, "d", b"in the way")
    with pytest.raises((NotADirectoryError, UnsafePath)):
        await store.write(SPACE, "d/file/below", b"in the way")
    with pytest.raises(NotADirectoryError):
        await store.list_directory(SPACE, "d/file")
    for path in ("none", "d/none", "none/at/all"):
        with pytest.raises(FileNotFoundError):
            await store.read(SPACE, path, 9)
        with pytest.raises(FileNotFoundError):
            await store.remove(SPACE, path)
    with pytest.raises(FileNotFoundError):
        await store.list_directory(SPACE, "none")


async def test_paths_that_lead_out_are_refused(store: WorkspaceStore) -> None:
    """Whatever came before has judged them; the store does it as well."""
    await store.write("other", "secret", b"theirs")
    for path in ("../other/secret", "a/../../other/secret"):
        with pytest.raises((UnsafePath, FileNotFoundError)):
            await store.read(SPACE, path, 99)
        with pytest.raises((UnsafePath, FileNotFoundError)):
            await store.write(SPACE, path, b"mine")
        with pytest.raises((UnsafePath, FileNotFoundError)):
            await store.remove(SPACE, path)
    for path in ("", "."):
        with pytest.raises(UnsafePath):
            await store.write(SPACE, path, b"")
        with pytest.raises(UnsafePath):
            await store.remove(SPACE, path)
    with pytest.raises(OSError, match="too long"):
        await store.write(SPACE, "n" * 300, b"")
    assert await store.read("other", "secret", 99) == b"theirs"


async def test_what_is_removed_is_gone(store: WorkspaceStore) -> None:
    """A file, a directory with all in it, a workspace; and not what only begins with the same letters."""
    for path in ("d/one", "d/e/two", "d.txt", "left"):
        await store.write(SPACE, path, b"x")
    await store.write("space2", "kept", b"x")
    await store.remove(SPACE, "d")
    assert sorted(await store.replica(SPACE).list()) == ["d.txt", "left"]
    await store.remove(SPACE, "left")
    assert [one.name for one in await store.list_directory(SPACE, ".")] == ["d.txt"]
    for _ in range(2):
        await store.delete(SPACE)
    assert list(await store.list_directory(SPACE, ".")) == []
    assert await store.read("space2", "kept", 9) == b"x"


async def test_a_side_takes_what_another_gives(store: WorkspaceStore) -> None:
    """Contents, times and executable bits; a listing matches the upload until a file changes."""
    side = store.replica(SPACE)
    program = FileStat(4, 1_700_000_000 * NANOSECONDS_PER_SECOND, 0o755)
    many = [
        (f"many/{number}", b"x" * number, FileStat(number, 5 * NANOSECONDS_PER_SECOND, 0o644))
        for number in range(40)
    ]
    taken = await side.write(_given(("bin/run", b"#!sh", program), *many))
    listed = await side.list()
    assert taken.keys() == listed.keys()
    assert all(listed[path].is_same(seen) for path, seen in taken.items())
    given = {path: seen async for path, _content, seen in side.read(listed)}
    assert given["bin/run"][:3] == program[:3]
    assert (await _contents(store, listed))["many/39"] == b"x" * 39

    await store.write(SPACE, "bin/run", b"#!py")
    now = await side.list()
    assert [path for path in now if not now[path].is_same(listed[path])] == ["bin/run"]
    changed = {"bin/run": now["bin/run"]}
    assert {seen.mode async for _path, _content, seen in side.read(changed)} == {0o755}
    await side.remove(["bin/run", "never/there"])
    assert not {path for path in await side.list() if path.startswith("bin")}


async def test_a_side_takes_links_and_empty_directories(store: WorkspaceStore) -> None:
    """They are listed as what they are, read by their targets, replaced by files, and removed."""
    side, link = store.replica(SPACE), FileStat(4, 7 * NANOSECONDS_PER_SECOND, stat.S_IFLNK)
    given = (("d/f", b"text", FileStat(4, 0, 0o644)), ("d/to", b"real", link), ("x/y", b"", EMPTY_DIRECTORY))
    taken = await side.write(_given(*given))
    listed = await side.list()
    assert taken.keys() == listed.keys() == {"d/f", "d/to", "x/y"}
    assert all(listed[path].is_same(seen) for path, seen in taken.items())
    assert [path for path, seen in listed.items() if seen.is_link] == ["d/to"]
    assert [path for path, seen in listed.items() if seen.is_directory] == ["x/y"]
    assert await _contents(store, listed) == {"d/f": b"text", "d/to": b"real", "x/y": b""}
    kinds = {one.name: one.kind for one in await store.list_directory(SPACE, "d")}
    assert kinds == {"f": "file", "to": "link"}
    assert (await store.stat(SPACE, "d/to")).kind == "link"
    await side.write(_given(("d/to", b"file", FileStat(4, 0, 0o644)), ("x/y", b"real", link)))
    now = await side.list()
    assert now["d/to"].is_regular
    assert now["x/y"].is_link
    await side.remove(["x/y", "d/f", "d/to"])
    assert await side.list() == {}
    assert list(await store.list_directory(SPACE, ".")) == []


async def _link(store: WorkspaceStore, path: str, target: str) -> None:
    content = target.encode()
    await store.replica(SPACE).write(_given((path, content, FileStat(len(content), 0, stat.S_IFLNK))))


async def test_links_are_followed_inside_the_workspace_alone(store: WorkspaceStore) -> None:
    """A link to the host, out by .., in a chain or in a circle is refused; nothing behind it is written."""
    await store.write(SPACE, "a/real/f", b"inside")
    await store.write("other", "secret", b"theirs")
    await _link(store, "a/current", "real")
    await _link(store, "b/file", "../a/current/f")
    assert await store.read(SPACE, "a/current/f", 99) == b"inside"
    assert await store.read(SPACE, "b/file", 99) == b"inside"
    assert [one.name for one in await store.list_directory(SPACE, "a/current")] == ["f"]
    links = {"etc": "/etc", "up": "../other", "one": "two", "two": "up/secret", "round": "round"}
    for name, target in links.items():
        await _link(store, f"out/{name}", target)
    await _link(store, "out/far", "../../other")
    for path in ("etc/passwd", "up/secret", "far/secret", "one", "round", "round/f"):
        with pytest.raises((UnsafePath, FileNotFoundError)):
            await store.read(SPACE, f"out/{path}", 99)
        with pytest.raises((UnsafePath, FileNotFoundError, NotADirectoryError)):
            await store.list_directory(SPACE, f"out/{path}")
    for path in ("etc/passwd", "far/secret", "round/f"):
        with pytest.raises(UnsafePath):
            await store.read(SPACE, f"out/{path}", 99)
        with pytest.raises(UnsafePath):
            await store.write(SPACE, f"out/{path}", b"mine")
        with pytest.raises(UnsafePath):
            await store.mkdir(SPACE, f"out/{path}/d")
    assert await store.read("other", "secret", 99) == b"theirs"
    with pytest.raises(FileNotFoundError):
        await store.stat("other", "d")


async def test_links_are_renamed_copied_and_removed_as_links(store: WorkspaceStore) -> None:
    """The target is neither moved nor removed, and a taken name is refused."""
    await store.write(SPACE, "real/f", b"kept")
    await _link(store, "d/to", "../real")
    await store.copy(SPACE, "d", "e")
    await store.rename(SPACE, "d/to", "moved")
    with pytest.raises(FileExistsError):
        await store.copy(SPACE, "real/f", "moved")
    listed = await store.replica(SPACE).list()
    assert {path for path, seen in listed.items() if seen.is_link} == {"e/to", "moved"}
    await store.remove(SPACE, "moved")
    await store.remove(SPACE, "e")
    assert sorted(path for path in await store.replica(SPACE).list() if path != "d") == ["real/f"]
    await store.delete(SPACE)
    assert await store.replica(SPACE).list() == {}


async def test_what_grew_or_went_since_is_left_for_later(store: WorkspaceStore) -> None:
    """Contents never exceed the declared size, so that a sync stays within its limits."""
    await store.write(SPACE, "grown", b"12345")
    wanted = {"grown": FileStat(2, 0, 0o644), "gone": FileStat(2, 0, 0o644)}
    assert await _contents(store, wanted) == {}


async def test_a_workspace_without_a_sandbox_is_read_from_the_store(store: WorkspaceStore) -> None:
    """Its files are found the newest first and read by the path in a sandbox; nothing is written."""
    for path, second in (("a/old.txt", 1), ("a/b/new.txt", 9), ("a/other.md", 5)):
        await store.replica(SPACE).write(
            _given((path, b"text", FileStat(4, second * NANOSECONDS_PER_SECOND, 0o644)))
        )
    held = StoredWorkspace(store, SPACE, "/mnt/workspaces/space")
    assert set(await held.list_newest(".", "**/*.txt", limit=9)) == {"a/old.txt", "a/b/new.txt"}
    assert await held.list_newest("a", "*.txt", limit=9) == ["old.txt"]
    assert len(await held.list_newest(".", "**", limit=2)) == 2
    assert await held.read("/mnt/workspaces/space/a/old.txt", limit=2) == b"te"
    with pytest.raises(UnsafePath):
        await held.read("../other/secret", limit=9)
    with pytest.raises(PermissionError):
        await held.write("new", b"")


async def test_names_too_long_for_s3_stay_where_they_are(endpoint: str) -> None:
    """One file that cannot be an object does not prevent others."""
    async with open_empty_store(endpoint) as (_, store):
        deep = "/".join(["n" * 200] * 6)
        small = FileStat(1, 0, 0o644)
        taken = await store.replica(SPACE).write(_given((deep, b"x", small), ("short", b"x", small)))
        assert list(taken) == ["short"]


async def test_objects_of_others_in_the_bucket_are_no_paths(endpoint: str) -> None:
    """An object with an impossible path is not synced into a sandbox, and is deleted with its workspace."""
    async with open_empty_store(endpoint) as (bucket, store):
        for name in ("../out", "a//b", "folder/", "fine"):
            await store.client.put_object(**bucket.key(f"workspaces/{SPACE}/{name}"), Body=b"x")
        assert list(await store.replica(SPACE).list()) == ["fine", "folder"]
        await store.delete(SPACE)
        assert list(await store.list_namespaces()) == []


async def test_a_bucket_that_cannot_be_used_says_why(endpoint: str) -> None:
    """A bucket that is not there is the operator's to make; a server that is away is waited for."""
    async with open_empty_store(endpoint) as (bucket, _):
        nowhere = replace(bucket, bucket="no-such-bucket-here")
        async with open_client(nowhere, "workspaces") as client:
            with pytest.raises(ProviderRefused, match="no such bucket"):
                await S3WorkspaceStore(client, nowhere).list_namespaces()
        away = replace(bucket, endpoint="http://127.0.0.1:1")
        async with open_client(away, "workspaces") as client:
            with pytest.raises(SandboxError) as caught:
                await S3WorkspaceStore(client, away).read(SPACE, "a", 1)
            assert caught.value.remedy == "retry"
