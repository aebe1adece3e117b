"""Working copies of workspaces in a bucket: each machine gets the other's changes, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from delivery.database.engine import Database
from gateway.accounts.vault import open_vault
from gateway.config.setting_types import AgentSettings
from gateway.environments.workspaces import Workspaces
from gateway.maintenance.workspace_sync import WorkspaceSyncLoop
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Records
from migrated import migrated_sqlite
from s3_servers import open_empty_store, s3_server
from sandbox.errors import SandboxError
from sandbox.labels import namespace
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.s3.store import S3WorkspaceStore
from sandbox.workspaces.sync_plan import regular_files
from sandbox.workspaces.syncer import no_checkpoint
from sandbox.workspaces.working_copies import WorkingCopies

SPACE = "space"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve S3 for all tests of this file."""
    with s3_server() as url:
        yield url


@pytest.fixture
async def store(endpoint: str) -> AsyncIterator[S3WorkspaceStore]:
    """Open an empty store."""
    async with open_empty_store(endpoint) as (_, store):
        yield store


class GatewayHost:
    """A machine with copies on its disk, which a restart of its gateway does not change."""

    def __init__(self, store: WorkspaceStore, place: Path) -> None:
        self.store = store
        self.place = place
        self.copies = self.started()

    def started(self, checkpoint: Callable[[str], None] = no_checkpoint) -> WorkingCopies:
        """Start the gateway again: it remembers what is on its disk."""
        bases = LocalBaselineStore(self.place / "carried")
        self.copies = WorkingCopies(self.store, self.place / "workspaces", bases, checkpoint=checkpoint)
        return self.copies

    @property
    def files(self) -> Path:
        """The copy of the one workspace."""
        return self.copies.directory(SPACE)

    async def push_changes(self) -> None:
        """Do what is done after a call."""
        await self.copies.push_changes(SPACE)

    async def start_copies(self) -> None:
        """Do what is done before a turn first uses a sandbox."""
        await self.copies.refresh(SPACE)


@pytest.fixture
def first_host(store: S3WorkspaceStore, tmp_path: Path) -> GatewayHost:
    """Return a machine."""
    return GatewayHost(store, tmp_path / "one")


@pytest.fixture
def second_host(store: S3WorkspaceStore, tmp_path: Path) -> GatewayHost:
    """Return another machine."""
    return GatewayHost(store, tmp_path / "two")


def _write(path: Path, text: str, *, ago: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = time.time() - ago
    os.utime(path, (moment, moment))


async def _stored(store: WorkspaceStore) -> dict[str, str]:
    listed = regular_files(await store.replica(SPACE).list())
    return {path: (await store.read(SPACE, path, 99)).decode() for path in listed}


def _tree(files: Path) -> dict[str, str]:
    """Return what each path is: the text of a file, the target of a link, or an empty directory."""
    found: dict[str, str] = {}
    for path in files.rglob("*"):
        name = path.relative_to(files).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text()
        elif not any(path.iterdir()):
            found[name] = "directory"
    return found


async def test_what_one_machine_did_the_other_sees(first_host: GatewayHost, second_host: GatewayHost) -> None:
    """Writes, programs, changes and removals, with the time at which a file was written."""
    _write(first_host.files / "deep/file", "first", ago=3600)
    (first_host.files / "run").write_text("#!/bin/sh\n")
    (first_host.files / "run").chmod(0o755)
    (first_host.files / "way-out").symlink_to("/etc/passwd")
    await first_host.push_changes()
    await second_host.start_copies()
    assert sorted(path.name for path in second_host.files.rglob("*")) == ["deep", "file", "run", "way-out"]
    assert (second_host.files / "way-out").readlink() == Path("/etc/passwd")
    assert (second_host.files / "run").stat().st_mode & 0o777 == 0o755
    assert (second_host.files / "deep/file").stat().st_mtime == (
        first_host.files / "deep/file"
    ).stat().st_mtime
    _write(second_host.files / "deep/file", "second")
    (second_host.files / "run").unlink()
    await second_host.push_changes()
    await first_host.start_copies()
    assert (first_host.files / "deep/file").read_text() == "second"
    assert not (first_host.files / "run").exists()
    assert (first_host.files / "way-out").is_symlink()
    assert await _stored(first_host.store) == {"deep/file": "second"}


async def test_nothing_is_asked_of_the_bucket_while_nothing_changes(
    first_host: GatewayHost, endpoint: str
) -> None:
    """A call that only reads checks the disk alone: not even a bucket outage is noticed."""
    _write(first_host.files / "file", "x")
    await first_host.push_changes()
    first_host.copies.store = _UnreachableStore()
    await first_host.push_changes()
    _write(first_host.files / "file", "changed")
    with pytest.raises(SandboxError):
        await first_host.push_changes()


class _UnreachableStore(S3WorkspaceStore):
    """A store that cannot be reached."""

    def __init__(self) -> None:
        pass

    def replica(self, namespace: str) -> None:  # type: ignore[override]
        """Raise what is raised then."""
        from sandbox.errors import ProviderUnreachable

        raise ProviderUnreachable(namespace)


async def test_the_later_writer_of_one_file_wins(first_host: GatewayHost, second_host: GatewayHost) -> None:
    """The last machine to sync wins; a changed file wins over its removal elsewhere."""
    for name in ("late-here", "late-there", "kept"):
        _write(first_host.files / name, "old", ago=3600)
    await first_host.push_changes()
    await second_host.start_copies()
    _write(second_host.files / "late-here", "two, before")
    _write(second_host.files / "late-there", "two")
    (second_host.files / "kept").unlink()
    await second_host.push_changes()
    _write(first_host.files / "late-here", "one, after", ago=-60)
    _write(first_host.files / "late-there", "one, long ago", ago=1800)
    _write(first_host.files / "kept", "written again")
    await first_host.push_changes()
    expected = {"late-here": "one, after", "late-there": "two", "kept": "written again"}
    assert await _stored(first_host.store) == expected
    assert {path.name: path.read_text() for path in first_host.files.iterdir()} == expected


async def test_a_restarted_gateway_carries_what_it_had_not(first_host: GatewayHost) -> None:
    """Changes and removals before SIGKILL are synced, and no synced file is synced twice."""
    _write(first_host.files / "same", "same", ago=3600)
    _write(first_host.files / "gone", "gone", ago=3600)
    await first_host.push_changes()
    before = await first_host.store.replica(SPACE).list()
    _write(first_host.files / "fresh", "fresh")
    (first_host.files / "gone").unlink()
    first_host.started()
    await first_host.push_changes()
    assert await _stored(first_host.store) == {"same": "same", "fresh": "fresh"}
    assert (await first_host.store.replica(SPACE).list())["same"] == before["same"]


async def test_files_without_a_baseline_are_compared_by_content(first_host: GatewayHost) -> None:
    """Killed after a sync and before it was recorded: equal files are equal, later ones win."""
    _write(first_host.files / "alike", "alike", ago=3600)
    _write(first_host.files / "later", "before", ago=3600)
    await first_host.push_changes()
    before = await first_host.store.replica(SPACE).list()
    shutil.rmtree(first_host.place / "carried")
    _write(first_host.files / "later", "after!", ago=-60)
    first_host.started()
    await first_host.push_changes()
    now = await first_host.store.replica(SPACE).list()
    assert now["alike"] == before["alike"]
    assert await _stored(first_host.store) == {"alike": "alike", "later": "after!"}
    assert (first_host.files / "alike").stat().st_mtime < time.time() - 3000


async def test_a_copy_that_is_lost_takes_nothing_away(
    first_host: GatewayHost, second_host: GatewayHost
) -> None:
    """An empty directory in place of files is no removal: a replaced disk deletes nothing."""
    _write(first_host.files / "precious", "x")
    await first_host.push_changes()
    shutil.rmtree(first_host.place / "workspaces")
    await first_host.start_copies()
    assert (first_host.files / "precious").read_text() == "x"
    shutil.rmtree(first_host.place / "workspaces")
    first_host.started()
    await first_host.push_changes()
    assert await _stored(first_host.store) == {"precious": "x"}


async def test_what_a_directory_held_before_goes_into_the_bucket(
    first_host: GatewayHost, second_host: GatewayHost
) -> None:
    """A change from a directory to a bucket keeps the files."""
    _write(first_host.place / "workspaces" / SPACE / "from-before", "x")
    assert first_host.copies.list_existing() == [SPACE]
    await first_host.push_changes()
    await second_host.start_copies()
    assert (second_host.files / "from-before").read_text() == "x"
    assert GatewayHost(first_host.store, first_host.place / "elsewhere").copies.list_existing() == []


async def test_a_workspace_that_is_gone_leaves_no_copy(first_host: GatewayHost) -> None:
    """Neither files nor what was remembered of them, so that one of its name would begin with nothing."""
    _write(first_host.files / "file", "x")
    await first_host.push_changes()
    await first_host.copies.delete(SPACE)
    assert first_host.copies.list_existing() == []
    assert list((first_host.place / "carried").iterdir()) == []
    assert first_host.copies.list_synced() == []


async def test_looks_carry_what_is_held_and_sweep_the_rest(
    first_host: GatewayHost, store: S3WorkspaceStore, tmp_path: Path
) -> None:
    """A copy with unsaved files is synced at the start; orphaned copies and objects are deleted."""
    url = await migrated_sqlite(tmp_path / "gateway.db")
    database = Database(url)
    async with database.begin() as connection:
        book = Records(open_vault(tmp_path))
        made = await ensure_defaults(connection, book, data=tmp_path, agent=AgentSettings())
    held = namespace(made.account, made.workspace.id)
    _write(first_host.copies.directory(held) / "unsaved", "x")
    _write(first_host.files / "of-a-workspace-that-is-gone", "x")
    await first_host.push_changes()
    workspaces = Workspaces(
        store=store,
        root=first_host.place,
        syncer=first_host.copies,
        working_copies=first_host.copies,
        bucket=store,
    )
    looks = WorkspaceSyncLoop(database, workspaces, interval=60, sweep_enabled=True)
    stop = asyncio.Event()
    running = asyncio.create_task(looks.run(stop))
    async with asyncio.timeout(20):
        while await store.list_namespaces() != [held] or first_host.copies.list_existing() != [held]:  # noqa: ASYNC110 - looks do it
            await asyncio.sleep(0.02)
    stop.set()
    await running
    assert await store.read(held, "unsaved", 9) == b"x"
    await database.close()


class _GatewayKilled(Exception):
    """The gateway was killed."""


def _clear(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


async def _random_step(chance: random.Random, machine: GatewayHost, step: int) -> None:
    """Perform one random action on a machine, or on the workspace over HTTP."""
    path = chance.choice(["x", "y", "d/x", "d/y", "e/f/g"])
    match chance.choice(
        [*("write",) * 3, "remove", "upload", "delete", "begin", "look", "look", "link", "mkdir"]
    ):
        case "link":
            _clear(machine.files / "l")
            (machine.files / "l").symlink_to(chance.choice(["x", "d", "/etc"]))
        case "mkdir":
            _clear(machine.files / "l")
            (machine.files / "l" / chance.choice(["one", "two"])).mkdir(parents=True)
        case "write":
            _write(machine.files / path, f"written {step}")
        case "remove":
            (machine.files / path).unlink(missing_ok=True)
        case "upload":
            await machine.store.write(SPACE, path, f"uploaded {step}".encode())
        case "delete":
            with suppress(FileNotFoundError):
                await machine.store.remove(SPACE, path)
        case "begin":
            await machine.start_copies()
        case _:
            await machine.push_changes()


@pytest.mark.parametrize("seed", [1, 2])
async def test_machines_that_die_while_they_carry_agree_in_the_end(
    seed: int, first_host: GatewayHost, second_host: GatewayHost
) -> None:
    """Whatever is written, removed and uploaded wherever: once all is quiet, bucket and copies are one."""
    chance = random.Random(seed)

    def checkpoint(point: str) -> None:
        if chance.random() < 0.15:
            raise _GatewayKilled(point)

    for machine in (first_host, second_host):
        machine.started(checkpoint)
    for step in range(80):
        machine = chance.choice([first_host, second_host])
        try:
            await _random_step(chance, machine, step)
        except _GatewayKilled:
            machine.started(checkpoint)
    for machine in (first_host, second_host) * 3:
        machine.started()
        await machine.start_copies()
    expected = await _stored(first_host.store)
    assert expected
    assert _tree(first_host.files) == _tree(second_host.files)
    listed = await first_host.store.replica(SPACE).list()
    assert _tree(first_host.files).keys() == listed.keys()
    texts = {path: text for path, text in _tree(first_host.files).items() if listed[path].is_regular}
    assert texts == expected
