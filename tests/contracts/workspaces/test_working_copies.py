"""Working copies of workspaces in a bucket: what one machine did the other has, and nothing is lost."""

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
from gateway.maintenance.workspace_sync import Looks
from gateway.records.bootstrap import ensure_defaults
from gateway.records.records import Book
from migrated import migrated_sqlite
from s3_servers import fresh_bucket, s3_server
from sandbox.errors import SandboxError
from sandbox.labels import namespace
from sandbox.workspaces.baselines import LocalBases
from sandbox.workspaces.port import Store
from sandbox.workspaces.s3_store import S3Store
from sandbox.workspaces.syncer import unnoticed
from sandbox.workspaces.working_copies import Copies

SPACE = "space"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve S3 for all tests of this file."""
    with s3_server() as url:
        yield url


@pytest.fixture
async def store(endpoint: str) -> AsyncIterator[S3Store]:
    """Open an empty store."""
    async with fresh_bucket(endpoint) as (_, store):
        yield store


class Machine:
    """A machine with copies on its disk, which a restart of its gateway does not change."""

    def __init__(self, store: Store, place: Path) -> None:
        self.store = store
        self.place = place
        self.copies = self.started()

    def started(self, checkpoint: Callable[[str], None] = unnoticed) -> Copies:
        """Start the gateway again: it remembers what is on its disk."""
        bases = LocalBases(self.place / "carried")
        self.copies = Copies(self.store, self.place / "workspaces", bases, checkpoint=checkpoint)
        return self.copies

    @property
    def files(self) -> Path:
        """The copy of the one workspace."""
        return self.copies.directory(SPACE)

    async def look(self) -> None:
        """Do what is done after a call."""
        await self.copies.look(SPACE)

    async def begin(self) -> None:
        """Do what is done before a turn first uses a sandbox."""
        await self.copies.renew(SPACE)


@pytest.fixture
def one(store: S3Store, tmp_path: Path) -> Machine:
    """Return a machine."""
    return Machine(store, tmp_path / "one")


@pytest.fixture
def two(store: S3Store, tmp_path: Path) -> Machine:
    """Return another machine."""
    return Machine(store, tmp_path / "two")


def _written(path: Path, text: str, *, ago: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = time.time() - ago
    os.utime(path, (moment, moment))


async def _stored(store: Store) -> dict[str, str]:
    return {path: (await store.read(SPACE, path, 99)).decode() for path in await store.side(SPACE).listing()}


async def test_what_one_machine_did_the_other_sees(one: Machine, two: Machine) -> None:
    """Writes, programs, changes and removals, with the time at which a file was written."""
    _written(one.files / "deep/file", "first", ago=3600)
    (one.files / "run").write_text("#!/bin/sh\n")
    (one.files / "run").chmod(0o755)
    (one.files / "way-out").symlink_to("/etc/passwd")
    await one.look()
    await two.begin()
    assert sorted(path.name for path in two.files.rglob("*")) == ["deep", "file", "run"]
    assert (two.files / "run").stat().st_mode & 0o777 == 0o755
    assert (two.files / "deep/file").stat().st_mtime == (one.files / "deep/file").stat().st_mtime
    _written(two.files / "deep/file", "second")
    (two.files / "run").unlink()
    await two.look()
    await one.begin()
    assert (one.files / "deep/file").read_text() == "second"
    assert not (one.files / "run").exists()
    assert (one.files / "way-out").is_symlink()
    assert await _stored(one.store) == {"deep/file": "second"}


async def test_nothing_is_asked_of_the_bucket_while_nothing_changes(one: Machine, endpoint: str) -> None:
    """A call that only reads costs a look at the disk: not even a bucket that is away is noticed."""
    _written(one.files / "file", "x")
    await one.look()
    one.copies.store = _Away()
    await one.look()
    _written(one.files / "file", "changed")
    with pytest.raises(SandboxError):
        await one.look()


class _Away(S3Store):
    """A store that cannot be reached."""

    def __init__(self) -> None:
        pass

    def side(self, namespace: str) -> None:  # type: ignore[override]
        """Raise what is raised then."""
        from sandbox.errors import Unreachable

        raise Unreachable(namespace)


async def test_the_later_writer_of_one_file_wins(one: Machine, two: Machine) -> None:
    """Whichever machine carries last; a file that was written outlives its removal elsewhere."""
    for name in ("late-here", "late-there", "kept"):
        _written(one.files / name, "old", ago=3600)
    await one.look()
    await two.begin()
    _written(two.files / "late-here", "two, before")
    _written(two.files / "late-there", "two")
    (two.files / "kept").unlink()
    await two.look()
    _written(one.files / "late-here", "one, after", ago=-60)
    _written(one.files / "late-there", "one, long ago", ago=1800)
    _written(one.files / "kept", "written again")
    await one.look()
    expected = {"late-here": "one, after", "late-there": "two", "kept": "written again"}
    assert await _stored(one.store) == expected
    assert {path.name: path.read_text() for path in one.files.iterdir()} == expected


async def test_a_restarted_gateway_carries_what_it_had_not(one: Machine) -> None:
    """What was written and removed before kill -9 is carried, and nothing that is there is carried twice."""
    _written(one.files / "same", "same", ago=3600)
    _written(one.files / "gone", "gone", ago=3600)
    await one.look()
    before = await one.store.side(SPACE).listing()
    _written(one.files / "fresh", "fresh")
    (one.files / "gone").unlink()
    one.started()
    await one.look()
    assert await _stored(one.store) == {"same": "same", "fresh": "fresh"}
    assert (await one.store.side(SPACE).listing())["same"] == before["same"]


async def test_what_nobody_remembers_is_compared_by_content(one: Machine) -> None:
    """Killed after files were carried and before that was written down: alike is alike, later is later."""
    _written(one.files / "alike", "alike", ago=3600)
    _written(one.files / "later", "before", ago=3600)
    await one.look()
    before = await one.store.side(SPACE).listing()
    shutil.rmtree(one.place / "carried")
    _written(one.files / "later", "after!", ago=-60)
    one.started()
    await one.look()
    now = await one.store.side(SPACE).listing()
    assert now["alike"] == before["alike"]
    assert await _stored(one.store) == {"alike": "alike", "later": "after!"}
    assert (one.files / "alike").stat().st_mtime < time.time() - 3000


async def test_a_copy_that_is_lost_takes_nothing_away(one: Machine, two: Machine) -> None:
    """An empty directory where files were is no removal: of a disk that was replaced nobody asked for one."""
    _written(one.files / "precious", "x")
    await one.look()
    shutil.rmtree(one.place / "workspaces")
    await one.begin()
    assert (one.files / "precious").read_text() == "x"
    shutil.rmtree(one.place / "workspaces")
    one.started()
    await one.look()
    assert await _stored(one.store) == {"precious": "x"}


async def test_what_a_directory_held_before_goes_into_the_bucket(one: Machine, two: Machine) -> None:
    """Whoever changes from a directory to a bucket keeps the files."""
    _written(one.place / "workspaces" / SPACE / "from-before", "x")
    assert one.copies.known() == [SPACE]
    await one.look()
    await two.begin()
    assert (two.files / "from-before").read_text() == "x"
    assert Machine(one.store, one.place / "elsewhere").copies.known() == []


async def test_a_workspace_that_is_gone_leaves_no_copy(one: Machine) -> None:
    """Neither files nor what was remembered of them, so that one of its name would begin with nothing."""
    _written(one.files / "file", "x")
    await one.look()
    await one.copies.drop(SPACE)
    assert one.copies.known() == []
    assert list((one.place / "carried").iterdir()) == []
    assert one.copies.used() == []


async def test_looks_carry_what_is_held_and_sweep_the_rest(
    one: Machine, store: S3Store, tmp_path: Path
) -> None:
    """A copy with unsaved files is carried at the start; copies and objects of what is gone go as well."""
    url = await migrated_sqlite(tmp_path / "gateway.db")
    database = Database(url)
    async with database.begin() as connection:
        book = Book(open_vault(tmp_path))
        made = await ensure_defaults(connection, book, data=tmp_path, agent=AgentSettings())
    held = namespace(made.account, made.workspace.id)
    _written(one.copies.directory(held) / "unsaved", "x")
    _written(one.files / "of-a-workspace-that-is-gone", "x")
    await one.look()
    workspaces = Workspaces(store=store, root=one.place, carrier=one.copies, copies=one.copies, bucket=store)
    looks = Looks(database, workspaces, every=60, sweeps=True)
    stop = asyncio.Event()
    running = asyncio.create_task(looks.run(stop))
    async with asyncio.timeout(20):
        while await store.namespaces() != [held] or one.copies.known() != [held]:  # noqa: ASYNC110 - looks do it
            await asyncio.sleep(0.02)
    stop.set()
    await running
    assert await store.read(held, "unsaved", 9) == b"x"
    await database.close()


class _Dead(Exception):
    """The gateway was killed."""


async def _live(chance: random.Random, machine: Machine, step: int) -> None:
    """Do one of the things that happen on a machine, or to the workspace over HTTP."""
    path = chance.choice(["x", "y", "d/x", "d/y", "e/f/g"])
    match chance.choice(["write", "write", "write", "remove", "upload", "delete", "begin", "look", "look"]):
        case "write":
            _written(machine.files / path, f"written {step}")
        case "remove":
            (machine.files / path).unlink(missing_ok=True)
        case "upload":
            await machine.store.write(SPACE, path, f"uploaded {step}".encode())
        case "delete":
            with suppress(FileNotFoundError):
                await machine.store.remove(SPACE, path)
        case "begin":
            await machine.begin()
        case _:
            await machine.look()


@pytest.mark.parametrize("seed", [1, 2])
async def test_machines_that_die_while_they_carry_agree_in_the_end(
    seed: int, one: Machine, two: Machine
) -> None:
    """Whatever is written, removed and uploaded wherever: once all is quiet, bucket and copies are one."""
    chance = random.Random(seed)

    def checkpoint(point: str) -> None:
        if chance.random() < 0.15:
            raise _Dead(point)

    for machine in (one, two):
        machine.started(checkpoint)
    for step in range(80):
        machine = chance.choice([one, two])
        try:
            await _live(chance, machine, step)
        except _Dead:
            machine.started(checkpoint)
    for machine in (one, two, one, two):
        machine.started()
        await machine.begin()
    expected = await _stored(one.store)
    assert expected
    for machine in (one, two):
        there = [path for path in machine.files.rglob("*") if path.is_file()]
        assert {path.relative_to(machine.files).as_posix(): path.read_text() for path in there} == expected
