"""Decide from file lists alone what is synced between a workspace store and a remote sandbox."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.workspaces import sandbox_transfer
from sandbox.workspaces.sync_plan import (
    NANOSECONDS_PER_SECOND,
    FileStat,
    SyncBaseline,
    SyncPlan,
    fit_within,
    plan_sync,
)


def _at(second: int, size: int = 1) -> FileStat:
    return FileStat(size, second * NANOSECONDS_PER_SECOND, 0o644)


OLD, NEW, NEWER = _at(1), _at(2), _at(3)
BASE = SyncBaseline(stored={"f": OLD}, inside={"f": OLD})


@pytest.mark.parametrize(
    ("base", "stored", "inside", "expected"),
    [
        (SyncBaseline(), {"f": OLD}, {}, SyncPlan(put=("f",))),
        (SyncBaseline(), {}, {"f": OLD}, SyncPlan(fetched=("f",))),
        (SyncBaseline(), {"f": OLD}, {"f": OLD}, SyncPlan()),
        (BASE, {"f": OLD}, {"f": OLD}, SyncPlan()),
        (BASE, {"f": NEW}, {"f": OLD}, SyncPlan(put=("f",))),
        (BASE, {"f": OLD}, {"f": NEW}, SyncPlan(fetched=("f",))),
        (BASE, {"f": NEW}, {"f": NEWER}, SyncPlan(fetched=("f",))),
        (BASE, {"f": NEWER}, {"f": NEW}, SyncPlan(put=("f",))),
        (BASE, {}, {"f": OLD}, SyncPlan(removed_inside=("f",))),
        (BASE, {"f": OLD}, {}, SyncPlan(removed_stored=("f",))),
        (BASE, {}, {"f": NEW}, SyncPlan(fetched=("f",))),
        (BASE, {"f": NEW}, {}, SyncPlan(put=("f",))),
        (BASE, {}, {}, SyncPlan()),
    ],
)
def test_what_changed_goes_to_the_other_side(
    base: SyncBaseline, stored: dict[str, FileStat], inside: dict[str, FileStat], expected: SyncPlan
) -> None:
    """The later writer wins, removals are synced too, and a change wins over a removal."""
    assert plan_sync(base, stored, inside, read_only=False) == expected


SIDES = st.dictionaries(st.sampled_from("abc"), st.sampled_from([OLD, NEW, NEWER]))


@given(stored=SIDES, inside=SIDES, before=SIDES)
def test_nothing_is_written_to_a_read_only_store(
    stored: dict[str, FileStat], inside: dict[str, FileStat], before: dict[str, FileStat]
) -> None:
    """A read-only workspace goes in and nothing of it comes back; no path goes two ways in any case."""
    base = SyncBaseline(stored=before, inside=before)
    guarded = plan_sync(base, stored, inside, read_only=True)
    assert guarded.fetched == guarded.removed_stored == ()
    free = plan_sync(base, stored, inside, read_only=False)
    every = [*free.put, *free.removed_inside, *free.fetched, *free.removed_stored]
    assert len(every) == len(set(every))


def test_what_is_too_much_waits() -> None:
    """The smallest files come first, and together they stay within the limit."""
    sizes = {"big": _at(1, 50), "small": _at(1, 5), "middle": _at(1, 10)}
    assert list(fit_within(("big", "middle", "small"), sizes, limit=20)) == ["small", "middle"]


@pytest.mark.parametrize("path", ["", ".", "..", "../x", "a/../b", "/etc/passwd", "a//b", "./a", "a/./b"])
def test_a_path_that_is_not_plain_is_no_path(path: str) -> None:
    """Only paths that stay below the workspace, literally, are accepted from a sandbox."""
    assert not sandbox_transfer.is_plain_path(path)


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    made.seek(0)
    return made


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def test_of_a_hostile_archive_only_what_was_asked_for_is_taken() -> None:
    """Paths out, links, devices, files that were not asked for or have grown, and repetitions are left."""
    archive = _archive(
        (_member("../out"), b"x"),
        (_member("/abs"), b"x"),
        (_member("./link", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (_member("./hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (_member("./device", tarfile.CHRTYPE), b""),
        (_member("./grown"), b"xx"),
        (_member("./good"), b"1"),
        (_member("./good"), b"2"),
        (_member("./unasked"), b"x"),
    )
    wanted = dict.fromkeys(("link", "hard", "device", "grown", "good"), OLD)
    assert list(sandbox_transfer.read_archive(archive, wanted)) == [("good", b"1")]
