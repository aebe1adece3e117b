"""A process is ready when its roles work; degraded parts do not make it unready."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from delivery.exhaustion import EXHAUSTED, Resource, exhausted_resource
from gateway.config.setting_types import Role
from gateway.observability.disk import LOW_BELOW_BYTES, REUSE_SECONDS, DiskProbe, DiskState
from gateway.observability.readiness import assess

OK = {Resource.DISK: "ok", Resource.OPEN_FILES: "ok"}
HEALTHY: dict[str, Any] = {
    "database": "ok",
    "resources": OK,
    "broker": "ok",
    "channels_loaded": True,
    "is_disk_low": False,
    "fill_ratio": 0.1,
}


@pytest.mark.parametrize(
    ("role", "ready"),
    [(Role.INGRESS, True), (Role.REAPER, True), (Role.TURNS, False), (Role.DELIVERY, False)],
)
def test_only_some_roles_need_the_broker(role: Role, *, ready: bool) -> None:
    """Without NATS messages are still accepted; turns and deliveries wait."""
    assert assess(frozenset({role}), **HEALTHY | {"broker": "not connected"}).ready is ready
    assert assess(frozenset({role}), **HEALTHY).ready


@pytest.mark.parametrize("role", list(Role))
def test_every_role_needs_the_database_a_disk_and_files(role: Role) -> None:
    """Each of them alone makes the process unready and is named."""
    gone = assess(frozenset({role}), **HEALTHY | {"database": "away"})
    assert (gone.ready, gone.checks["database"]) == (False, "away")
    for resource in Resource:
        states = HEALTHY["resources"] | {resource: "used up"}
        used_up = assess(frozenset({role}), **HEALTHY | {"resources": states})
        assert (used_up.ready, used_up.checks[resource]) == (False, "used up")


def test_ingress_waits_until_its_channels_are_known() -> None:
    """Before that webhooks of platforms would be refused; other roles do not receive any."""
    unknown = HEALTHY | {"channels_loaded": False}
    assert not assess(frozenset({Role.INGRESS}), **unknown).ready
    assert assess(frozenset({Role.REAPER}), **unknown).ready


def test_a_full_log_and_little_space_degrade() -> None:
    """Both are reported, and the process stays ready."""
    reported = assess(frozenset(Role), **HEALTHY | {"fill_ratio": 0.85, "is_disk_low": True})
    assert reported.ready
    assert reported.degraded["disk"] == "little space is left"
    assert reported.degraded["event log"].startswith("uses 85% of its capacity")
    assert assess(frozenset(Role), **HEALTHY | {"fill_ratio": 0.8}).degraded == {}


async def test_a_directory_that_takes_no_write_is_reported_and_probed_again_later(tmp_path: Path) -> None:
    """A result is reused for a moment, so that requests without a key cannot cause many writes."""
    now = [0.0]
    directory = tmp_path / "data"
    probe = DiskProbe([directory], clock=lambda: now[0])
    missing = (await probe.run()).resources[Resource.DISK]
    assert missing == "cannot be used: No such file or directory"
    directory.mkdir()
    assert (await probe.run()).resources[Resource.DISK] == missing
    now[0] += REUSE_SECONDS * 2
    assert (await probe.run()).resources == OK
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN, errno.ESTALE, None])
async def test_a_mount_that_fails_is_reported(tmp_path: Path, number: int | None) -> None:
    """Whichever call to the file system fails, there is a reason, and the process is not ready."""

    def fail(_directory: Path) -> int:
        raise OSError(number, "failed") if number else OSError("failed")

    for directory in (tmp_path, tmp_path / "missing"):
        state = await DiskProbe([directory], read_free=fail).run()
        assert state.resources[Resource.DISK].startswith("cannot be used: ")
        health = assess(frozenset(Role), **HEALTHY | {"resources": state.resources})
        assert (health.ready, health.checks["disk"]) == (False, state.resources[Resource.DISK])


async def test_a_mount_that_does_not_return_is_reported(tmp_path: Path) -> None:
    """Callers have their answer, and there is one attempt, whose result counts once the mount returns."""
    returned, attempts = threading.Event(), []

    def hang(directory: Path) -> int:
        attempts.append(directory)
        returned.wait()
        return LOW_BELOW_BYTES

    probe = DiskProbe([tmp_path], answer_seconds=0.01, read_free=hang)
    states = await asyncio.gather(*(probe.run() for _ in range(3)))
    try:
        assert {state.resources[Resource.DISK] for state in states} == {"does not answer within 0.01 s"}
        assert (await probe.run()).resources[Resource.OPEN_FILES] == "ok"
    finally:
        returned.set()
    while (await probe.run()).resources != OK:
        continue
    assert attempts == [tmp_path]


async def test_little_space_is_reported(tmp_path: Path) -> None:
    """The least of the disks counts."""
    probe = DiskProbe([tmp_path, tmp_path], read_free=lambda _directory: LOW_BELOW_BYTES - 1)
    assert (await probe.run()) == DiskState(resources=OK, is_low=True)
    assert not (await DiskProbe([tmp_path], read_free=lambda _directory: LOW_BELOW_BYTES).run()).is_low


async def test_a_directory_on_a_disk_of_its_own_is_named(tmp_path: Path) -> None:
    """It may fail while the disks that every request needs are well: the process stays ready."""
    gone = tmp_path / "workspaces"
    state = await DiskProbe([tmp_path], list_further=lambda: [gone]).run()
    assert state.resources == OK
    assert state.concern == "workspaces: cannot be used: No such file or directory"
    health = assess(frozenset(Role), **HEALTHY | {"disk_concern": state.concern})
    assert (health.ready, health.degraded) == (True, {"disk": state.concern})


def test_an_exhausted_resource_is_found_behind_other_errors() -> None:
    """The cause may be chained, or be SQLite's own code; other errors name no resource."""
    causes = {
        errno.ENOSPC: Resource.DISK,
        errno.EROFS: Resource.WRITABLE_DISK,
        errno.EIO: Resource.WRITABLE_DISK,
        errno.EMFILE: Resource.OPEN_FILES,
    }
    for number, resource in causes.items():
        wrapped = RuntimeError("wrapped")
        wrapped.__cause__ = OSError(number, "cause")
        assert exhausted_resource(wrapped) is resource
        assert "operator" in EXHAUSTED[resource]
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert exhausted_resource(full) is Resource.DISK
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    assert exhausted_resource(failed) is Resource.WRITABLE_DISK
    absent = sqlite3.OperationalError("unable to open database file")
    absent.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert exhausted_resource(absent) is None
    assert exhausted_resource(OSError(errno.ECONNREFUSED, "refused")) is None
