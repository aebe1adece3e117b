"""Snapshots: packed without following links out, stored whole, checked before they are unpacked."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_sandboxes import MemoryInstance, MemorySandbox
from sandbox.errors import ProviderRefused, UnsafePath
from sandbox.host import home_snapshot
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.reservations import Reservation, SandboxRequest, reserve
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.model import SandboxId, SandboxSpec
from sandbox.snapshots import archive
from sandbox.snapshots.local import LocalSnapshotStore

LIMIT = 1 << 20
SPEC = SandboxSpec(label="dovecote-here-one", namespace="space", persistent=True)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")


def row(**changes: object) -> Reservation:
    """Return a row of the register."""
    made = reserve(SandboxRequest(spec=SPEC, owner=OWNER, provider="memory"), datetime.now(UTC))
    return replace(made, **changes)  # type: ignore[arg-type]  # the fields of a test


async def saved(keeper: Snapshotter, sandbox: MemorySandbox, of: Reservation) -> str | None:
    """Pack and store a snapshot, and return its name."""
    with keeper.scratch() as folder:
        done = await keeper.pack(sandbox, of, folder)
        if done is not None:
            await keeper.store(done)
    return done.name if done is not None else None


def packed(directory: Path) -> bytes:
    """Pack a directory below `home`."""
    target = io.BytesIO()
    archive.pack(directory, "home", target, limit=LIMIT)
    return target.getvalue()


def test_what_is_packed_is_unpacked_the_same(tmp_path: Path) -> None:
    """Files, modes, empty directories and inner links, and a venv's link to the machine's python."""
    home, back = tmp_path / "home", tmp_path / "back"
    (home / "bin").mkdir(parents=True)
    (home / "empty").mkdir()
    (home / "bin" / "tool").write_bytes(b"#!/bin/sh\n")
    (home / "bin" / "tool").chmod(0o755)
    (home / "alias").symlink_to("bin/tool")
    (home / "python").symlink_to("/usr/bin/python3")
    (home / "leading out").symlink_to(tmp_path)
    (home / "climbing").symlink_to("../../etc")
    os.mkfifo(home / "pipe")
    file = tmp_path / "archive"
    file.write_bytes(packed(home))
    assert file.read_bytes() == packed(home)
    back.mkdir()
    archive.unpack(file, back, top="home", limit=LIMIT)
    assert sorted(path.name for path in back.iterdir()) == ["alias", "bin", "empty", "python"]
    assert (back / "alias").read_bytes() == b"#!/bin/sh\n"
    assert os.access(back / "bin" / "tool", os.X_OK)
    assert str((back / "python").readlink()) == "/usr/bin/python3"


def test_more_than_the_limit_is_not_packed(tmp_path: Path) -> None:
    """A giant file, holes included, is refused before it is read."""
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(50 * 1024**3)
    with pytest.raises(ProviderRefused):
        packed(tmp_path)


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


@pytest.mark.parametrize(
    "members",
    [
        [_member("home/../../outside")],
        [_member("/etc/passwd")],
        [_member("home/out", tarfile.SYMTYPE, "/etc")],
        [_member("home/out", tarfile.SYMTYPE, "../../etc")],
        [_member("home/usr", tarfile.SYMTYPE, "/usr/lib"), _member("home/usr/file")],
        [_member("home/usr", tarfile.SYMTYPE, "/usr/lib"), _member("home/usr")],
        [_member("home/hard", tarfile.LNKTYPE, "home/file")],
        [_member("home/device", tarfile.CHRTYPE)],
        [_member("home/pipe", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: f"{members[-1].name} {members[-1].linkname}",
)
def test_a_hostile_archive_is_refused_as_a_whole(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    """Paths and links that lead out, writing through a link, devices: nothing at all is unpacked."""
    file, into = tmp_path / "archive", tmp_path / "into"
    into.mkdir()
    with tarfile.open(file, "w:gz") as tar:
        tar.addfile(_member("home/harmless"))
        for member in members:
            tar.addfile(member)
    with pytest.raises(UnsafePath):
        archive.unpack(file, into, top="home", limit=LIMIT)
    assert not list(into.iterdir())


def test_what_is_unpacked_is_written_by_its_owner_alone(tmp_path: Path) -> None:
    """The owner reads and writes each file. No setuid, setgid or sticky bit; others never write."""
    members = [_member("home/all", size=1), _member("home/none", size=1), _member("home/all", size=1)]
    members[0].mode, members[1].mode, members[2].mode = 0o644, 0, 0o7777
    members[2].mtime = 1_700_000_000
    file, back = tmp_path / "archive", tmp_path / "back"
    with tarfile.open(file, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x"))
    back.mkdir()
    archive.unpack(file, back, top="home", limit=LIMIT)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in back.iterdir()}
    assert found == {"all": 0o755, "none": 0o600}
    assert (back / "all").stat().st_mtime == 1_700_000_000


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """What is small packed and large unpacked is not unpacked."""
    file = tmp_path / "archive"
    with gzip.open(file, "wb") as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        tar.addfile(_member("home/zeros", size=8 * LIMIT), io.BytesIO(bytes(8 * LIMIT)))
    with pytest.raises(UnsafePath):
        archive.unpack(file, tmp_path, top="home", limit=LIMIT)


async def test_home_is_replaced_by_what_was_saved(tmp_path: Path) -> None:
    """On the host a restored HOME holds what the snapshot held, and nothing of what was there."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "kept").write_text("yes")
    chunks = [chunk async for chunk in home_snapshot.save(home, tmp_path)]
    (home / "kept").write_text("changed")
    (home / "later").touch()

    async def again() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    await home_snapshot.restore(again(), home, tmp_path)
    assert {path.name: path.read_text() for path in home.iterdir()} == {"kept": "yes"}
    assert os.listdir(tmp_path) == ["home"]  # noqa: PTH208 - a name in a test


@pytest.fixture
def instance() -> MemoryInstance:
    """An instance in memory."""
    return MemoryInstance(label=SPEC.label, home={"note": b"one"})


@pytest.fixture
def sandbox(instance: MemoryInstance) -> MemorySandbox:
    """The sandbox object of the instance."""
    return MemorySandbox(SandboxId("memory-1"), {SandboxId("memory-1"): instance})


async def test_the_same_content_is_kept_once(
    sandbox: MemorySandbox, instance: MemoryInstance, tmp_path: Path
) -> None:
    """A snapshot equal to the last one is not stored; a newer one replaces older ones."""
    store = LocalSnapshotStore(tmp_path / "store")
    keeper = Snapshotter(store, tmp_path / "scratch")
    first = await saved(keeper, sandbox, row(lock_version=1))
    assert first is not None
    assert await saved(keeper, sandbox, row(lock_version=2, snapshot=first)) == first
    instance.home["note"] = b"two"
    second = await saved(keeper, sandbox, row(lock_version=3, snapshot=first))
    assert second is not None
    await keeper.prune(second)
    assert list(await store.list()) == [second]
    instance.home.clear()
    assert await keeper.restore(sandbox, second)
    assert instance.home == {"note": b"two"}
    await keeper.delete_all(SPEC.label)
    assert not await store.list()


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("harm", [_damaged, Path.unlink], ids=["damaged", "lost"])
async def test_a_damaged_or_lost_snapshot_is_not_restored(
    sandbox: MemorySandbox, instance: MemoryInstance, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """The hash is a part of the name; what differs from it is not unpacked, and the sandbox starts cold."""
    keeper = Snapshotter(LocalSnapshotStore(tmp_path / "store"), tmp_path / "scratch")
    name = await saved(keeper, sandbox, row())
    assert name is not None
    harm(tmp_path / "store" / name)
    instance.home.clear()
    assert not await keeper.restore(sandbox, name)
    assert not instance.home


async def test_a_snapshot_larger_than_allowed_is_not_taken(
    sandbox: MemorySandbox, instance: MemoryInstance, tmp_path: Path
) -> None:
    """The sandbox goes on without one; nothing of it stays behind."""
    instance.home["noise"] = os.urandom(10_000)
    keeper = Snapshotter(LocalSnapshotStore(tmp_path / "store"), tmp_path / "scratch", limit=5000)
    assert await saved(keeper, sandbox, row()) is None
    assert not list((tmp_path / "scratch").iterdir())
