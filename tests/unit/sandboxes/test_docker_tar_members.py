"""Which members of a snapshot are extracted, and what a hostile one cannot do."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable

import pytest

from sandbox.docker import tar_members
from sandbox.docker.home_archive import topmost_changes
from sandbox.errors import ProviderRefused, UnsafePath


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """Return a member."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def snapshot(*entries: tarfile.TarInfo) -> io.BytesIO:
    """Return a packed snapshot."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for one in entries:
            tar.addfile(one, io.BytesIO(b"x" * one.size) if one.isreg() else None)
    raw.seek(0)
    return raw


def unpacked(*entries: tarfile.TarInfo) -> dict[str, tarfile.TarInfo]:
    """Return what would be unpacked, by folder and name."""
    folders = {"home": io.BytesIO(), "root": io.BytesIO()}
    tar_members.split_by_folder(snapshot(*entries), folders, "7:8")
    found = {}
    for folder, raw in folders.items():
        raw.seek(0)
        with tarfile.open(fileobj=raw) as tar:
            found.update({f"{folder}/{one.name}": one for one in tar})
    return found


def test_ordinary_members_are_taken() -> None:
    """Files, directories and links arrive, owned by the sandbox's user, without set-id bits."""
    taken = unpacked(
        entry("home/.local", tarfile.DIRTYPE, mode=0o755),
        entry("home/.local/program", mode=0o4755),
        entry("home/link", tarfile.SYMTYPE, "/usr/bin/python3"),
        entry("home/same", tarfile.LNKTYPE, "home/.local/program"),
        entry("root/usr/lib/new"),
    )
    assert set(taken) == {"home/.local", "home/.local/program", "home/link", "home/same", "root/usr/lib/new"}
    program = taken["home/.local/program"]
    assert (program.mode, program.uid, program.gid) == (0o755, 7, 8)
    assert taken["home/same"].linkname == ".local/program"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_are_left_out(kind: bytes) -> None:
    """Devices and pipes are not unpacked."""
    assert set(unpacked(entry("root/dev/sda", kind), entry("home/file"))) == {"home/file"}


HOSTILE: list[Callable[[], list[tarfile.TarInfo]]] = [
    lambda: [entry("/etc/passwd")],
    lambda: [entry("../up")],
    lambda: [entry("home/../../up")],
    lambda: [entry("elsewhere/file")],
    lambda: [entry("home/out", tarfile.SYMTYPE, "/"), entry("home/out/etc/passwd")],
    lambda: [entry("home/out", tarfile.SYMTYPE, ".."), entry("home/same", tarfile.LNKTYPE, "home/out")],
    lambda: [entry("home/hard", tarfile.LNKTYPE, "/etc/shadow")],
    lambda: [entry("home/hard", tarfile.LNKTYPE, "root/etc/shadow")],
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_leaves_its_place(hostile: Callable[[], list[tarfile.TarInfo]]) -> None:
    """Absolute and climbing names, and names through the archive's own links, are refused."""
    with pytest.raises(UnsafePath):
        unpacked(*hostile())


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense", gzip.compress(b"x" * 2000, mtime=0), gzip.compress(b"\0" * 99, mtime=0)[:-9]],
    ids=["empty", "nonsense", "no archive", "cut short"],
)
def test_a_broken_snapshot_is_refused(raw: bytes) -> None:
    """What is no snapshot is refused and nothing of it is unpacked."""
    with pytest.raises(ProviderRefused):
        tar_members.split_by_folder(io.BytesIO(raw), {"home": io.BytesIO(), "root": io.BytesIO()}, "0")


def test_a_bomb_is_refused() -> None:
    """A snapshot that declares a size above the limit is refused before it is unpacked."""
    sorting = tar_members.FolderSplitter("0")
    bomb = entry("home/bomb")
    bomb.size = tar_members.MAX_BYTES + 1
    with pytest.raises(ProviderRefused):
        sorting.classify(bomb)


def test_the_uppermost_changed_places_are_found() -> None:
    """A new directory includes everything in it, a changed one nothing; mounts are left out."""
    changes = [
        *(("/usr", 0), ("/usr/lib", 0), ("/usr/lib/new", 1), ("/usr/lib/new/deep", 1), ("/usr/lib/old", 0)),
        *(("/home", 0), ("/home/sandbox", 1), ("/tmp/x", 1), ("/etc/gone", 2), ("/etc/hosts", 0)),
        *(("/usr/lib/newer", 1), ("/.dockerenv", 1), ("/mnt", 1), ("/run/dovecote", 1)),
    ]
    assert topmost_changes(changes) == [
        ("/usr/lib/new", True),
        ("/usr/lib/newer", True),
        ("/usr/lib/old", False),
    ]
