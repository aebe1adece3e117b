"""The file tree of a turn: what its workspace held at the end, bounded, and never a reason to fail."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delivery.database.engine import Database
from gateway.environments.environment import Environment
from gateway.environments.workspaces import Workspaces, directory_workspaces
from gateway.files.storage.blob_store import DirectoryBlobStore
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.storage_quota import StorageQuota
from gateway.files.turn_trees import TurnTrees
from gateway.observability.metrics import Metrics
from gateway.store.conversations import files as store
from gateway.store.turns.turns import Turn
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope
from sandbox.model import SandboxSpec
from turn_worker import TurnWorkerHarness, open_turn_worker

SPACE = "space"


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """An account with a conversation."""
    return await open_turn_worker(database, tmp_path)


def make_trees(
    harness: TurnWorkerHarness, *, limit: int = 1000, stored: int = 0
) -> tuple[TurnTrees, Workspaces]:
    """Return trees of a directory store; `stored` bytes may be stored, 0: any number."""

    async def count(_account: str) -> int:
        return 0

    spaces = directory_workspaces(harness.directory / "w", baselines=harness.directory / "b", limit=1_000_000)
    file_store = FileStore(
        harness.database,
        DirectoryBlobStore(harness.directory / "trees"),
        retention=timedelta(days=1),
        quota=StorageQuota(count, Metrics(), limit=stored),
    )
    return TurnTrees(harness.database, spaces, file_store, limit=limit), spaces


def environments(*, read_only: bool = False) -> Mapping[str, Environment]:
    """Return the environments of an agent with one workspace."""
    owner = Owner(
        account="a", scope=Scope.WORKSPACE, conversation="c", agent="g", person="", workspace="wsp_1"
    )
    spec = SandboxSpec(label="l", namespace=SPACE, workspace=Path("/unused"), read_only=read_only)
    return {"main": Environment(config=SandboxConfig(), spec=spec, owner=owner)}


async def changes_of(trees: TurnTrees, turn: Turn) -> dict[str, str | None]:
    """Return the tree of a turn: changes by path."""
    tree = await trees.load(turn)
    return {one.path: one.change for one in tree.files} if tree is not None else {}


async def archived(harness: TurnWorkerHarness, trees: TurnTrees, turn: Turn) -> list[str]:
    """Return the names in a turn's archive."""
    row = await trees.archive_row(turn)
    assert row is not None
    assert row.sha256 is not None
    blob = harness.directory / "trees" / row.sha256[:2] / row.sha256
    with tarfile.open(fileobj=io.BytesIO(blob.read_bytes())) as tar:
        return tar.getnames()


async def test_only_what_fits_is_archived(harness: TurnWorkerHarness) -> None:
    """The smallest files first; the tree names all of them."""
    trees, spaces = make_trees(harness, limit=10)
    turn = await harness.add_turn()
    await spaces.store.write(SPACE, "old", b"before")
    await trees.begin(turn, environments())
    for name, size in (("large", 9), ("small", 2), ("middle", 5)):
        await spaces.store.write(SPACE, name, b"x" * size)
    await trees.begin(turn, environments())
    await trees.keep(turn)
    assert await changes_of(trees, turn) == {
        "large": "added",
        "middle": "added",
        "small": "added",
        "old": None,
    }
    assert await archived(harness, trees, turn) == ["small", "middle"]
    tree = await trees.load(turn)
    assert tree is not None
    assert {one.path for one in tree.files if one.archived} == {"small", "middle"}
    assert {one.workspace for one in tree.files} == {"main"}


async def test_a_repeated_attempt_shows_what_the_first_one_changed(harness: TurnWorkerHarness) -> None:
    """The listing of the first attempt is lost with its process; newer files count as modified."""
    trees, spaces = make_trees(harness)
    added = await harness.add_turn()
    turn = replace(added, attempt=2, created_at=added.created_at - timedelta(seconds=1))  # files' clocks tick
    await spaces.store.write(SPACE, "by-the-first-attempt", b"x")
    await trees.begin(turn, environments())
    await spaces.store.write(SPACE, "by-the-second", b"y")
    await trees.keep(turn)
    assert await changes_of(trees, turn) == {"by-the-first-attempt": "modified", "by-the-second": "added"}


async def test_a_tree_that_cannot_be_stored_is_left_out(harness: TurnWorkerHarness) -> None:
    """The account's storage is full: the turn ends all the same."""
    trees, spaces = make_trees(harness, stored=10)
    turn = await harness.add_turn()
    await trees.begin(turn, environments())
    await spaces.store.write(SPACE, "new", b"x")
    await trees.keep(turn)
    assert await trees.load(turn) is None


@pytest.mark.parametrize(("limit", "read_only"), [(0, False), (1000, True)])
async def test_some_turns_have_no_tree(harness: TurnWorkerHarness, limit: int, *, read_only: bool) -> None:
    """Where it is switched off, and for a workspace that the agent only reads."""
    trees, spaces = make_trees(harness, limit=limit)
    turn = await harness.add_turn()
    await trees.begin(turn, environments(read_only=read_only))
    await spaces.store.write(SPACE, "new", b"x")
    await trees.keep(turn)
    assert await trees.load(turn) is None


async def test_trees_count_and_expire_as_files_do(harness: TurnWorkerHarness, database: Database) -> None:
    """They are files of the account that are never sent, and expire as others do."""
    trees, spaces = make_trees(harness)
    turn = await harness.add_turn()
    await trees.begin(turn, environments())
    await spaces.store.write(SPACE, "new", b"x")
    await trees.keep(turn)
    async with database.begin() as connection:
        assert await store.stored_bytes(connection, turn.account, at_least=1) > 1
        assert await store.list_for_turn(connection, turn.conversation, turn.id) == []
        assert await store.collect_staged(connection, turn.conversation) == []
        await store.delete_before(connection, before=datetime.now(UTC) + timedelta(seconds=1))
        assert await store.stored_bytes(connection, turn.account, at_least=1) == 0
    assert await trees.load(turn) is None
