"""The storage quota of an account: what is counted when, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from gateway.files.storage.storage_quota import (
    COUNT_TIME_FACTOR,
    FILE_BYTES,
    RECOUNT_SECONDS,
    RECOUNT_WHEN_FULL_SECONDS,
    StorageFull,
    StorageQuota,
    WorkspaceBytes,
)
from gateway.observability.metrics import Metrics
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxError
from sandbox.workspaces.sync_plan import FileListing, FileStat


class CountedAccounts:
    """Accounts with stored blocks of 4 KiB, which count how often they are counted, and a clock."""

    def __init__(self) -> None:
        self.stored = {"ada": 0, "bob": 0}
        self.counts = 0
        self.now = 0.0
        self.metrics = Metrics()
        self.count_takes = 0.0
        self.quota = StorageQuota(self.count, self.metrics, limit=100 * FILE_BYTES, clock=lambda: self.now)

    async def count(self, account: str) -> int:
        """Return the stored bytes."""
        self.counts += 1
        self.now += self.count_takes
        return self.stored[account] * FILE_BYTES

    async def write(self, account: str, size: int) -> None:
        """Store blocks of 4 KiB within the quota of 100 blocks."""
        async with self.quota.reserve(account, size * FILE_BYTES):
            await asyncio.sleep(0)
            self.stored[account] += size

    @property
    def refusals(self) -> float | None:
        """Return the metric of refusals."""
        return self.metrics.registry.get_sample_value("dovecote_storage_refusals_total")


async def test_many_writes_are_counted_once() -> None:
    """Writes between two counts are added in memory, and one account's do not count for another."""
    accounts = CountedAccounts()
    for _ in range(50):
        await accounts.write("ada", 2)
    assert accounts.counts == 1
    await accounts.write("bob", 100)
    with pytest.raises(StorageFull, match=r"files\.account_bytes"):
        await accounts.write("ada", 1)
    assert (accounts.stored, accounts.refusals) == ({"ada": 100, "bob": 100}, 1)


async def test_writes_at_once_do_not_exceed_the_quota() -> None:
    """Bytes count from their admission on, not when they are stored."""
    accounts = CountedAccounts()
    writes = [accounts.write("ada", 30) for _ in range(10)]
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(one, StorageFull) for one in ended) == 7
    assert accounts.stored["ada"] == 90


async def test_a_failed_write_costs_nothing() -> None:
    """Bytes that were not stored are free again."""
    accounts = CountedAccounts()
    for _ in range(3):
        with pytest.raises(OSError, match="disk"):
            async with accounts.quota.reserve("ada", 90 * FILE_BYTES):
                raise OSError("disk")
    await accounts.write("ada", 100)


async def test_freed_space_is_noticed() -> None:
    """A full account is counted again after a few seconds, not for each refused write."""
    accounts = CountedAccounts()
    await accounts.write("ada", 100)
    accounts.stored["ada"] = 10
    for _ in range(20):
        with pytest.raises(StorageFull):
            await accounts.write("ada", 1)
    assert accounts.counts == 1
    accounts.now += RECOUNT_WHEN_FULL_SECONDS
    await accounts.write("ada", 90)
    assert (accounts.counts, accounts.stored["ada"]) == (2, 100)


async def test_what_others_stored_is_noticed() -> None:
    """After a minute an account is counted again."""
    accounts = CountedAccounts()
    await accounts.write("ada", 1)
    accounts.stored["ada"] = 95
    accounts.now += RECOUNT_SECONDS
    with pytest.raises(StorageFull):
        await accounts.write("ada", 10)


async def test_zero_is_no_limit() -> None:
    """With a limit of 0 nothing is counted or refused."""
    accounts = CountedAccounts()
    accounts.quota = StorageQuota(accounts.count, accounts.metrics, limit=0)
    await accounts.write("ada", 10**12)
    assert accounts.counts == 0


async def test_an_account_that_takes_long_to_count_is_counted_rarely() -> None:
    """A count of three seconds is not repeated for five minutes."""
    accounts = CountedAccounts()
    accounts.count_takes = 3.0
    await accounts.write("ada", 1)
    for _ in range(4):
        accounts.now += RECOUNT_SECONDS
        await accounts.write("ada", 1)
    assert accounts.counts == 1
    accounts.now += 3.0 * COUNT_TIME_FACTOR
    await accounts.write("ada", 1)
    assert accounts.counts == 2


async def test_many_empty_files_are_not_free() -> None:
    """A file counts 4 KiB at least, so that an account cannot store files without end."""
    accounts = CountedAccounts()
    for _ in range(100):
        async with accounts.quota.reserve("ada", 0):
            pass
    with pytest.raises(StorageFull):
        async with accounts.quota.reserve("ada", 0):
            pass


class BucketOfWorkspaces:
    """A store of workspaces that can fail, or not answer until `answers` is set."""

    def __init__(self) -> None:
        self.error: SandboxError | OSError | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.files = 1
        self.requests = 0

    async def list_workspace(self, _account: str, workspace: str) -> FileListing:
        """List `files` blocks of 4 KiB."""
        self.requests += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return {f"{workspace}/{n}": FileStat(FILE_BYTES, 0, 0o644) for n in range(self.files)}


@pytest.mark.parametrize(
    "error", [ProviderUnreachable("SlowDown"), ProviderRefused("no such bucket"), OSError("reset")]
)
async def test_a_failing_store_of_workspaces_stops_no_write(error: SandboxError | OSError) -> None:
    """Without any count the workspaces count nothing, and after one that failed, what they held before."""
    bucket = BucketOfWorkspaces()
    bucket.error = error
    workspaces = WorkspaceBytes(bucket.list_workspace)
    assert await workspaces.count("ada", ["w1", "w2"]) == 0
    bucket.error = None
    assert await workspaces.count("ada", ["w1", "w2"]) == 2 * FILE_BYTES
    bucket.error, bucket.files = error, 3
    assert await workspaces.count("ada", ["w1", "w2"]) == 2 * FILE_BYTES


async def test_a_store_that_does_not_answer_is_asked_once_and_not_awaited() -> None:
    """Writes go on while a store hangs; its answer counts when it comes."""
    bucket = BucketOfWorkspaces()
    bucket.answers.clear()
    workspaces = WorkspaceBytes(bucket.list_workspace, patience=0)
    assert [await workspaces.count("ada", ["w1"]) for _ in range(5)] == [0] * 5
    assert bucket.requests == 1
    assert await workspaces.count("bob", ["w2"]) == 0
    bucket.answers.set()
    patient = WorkspaceBytes(bucket.list_workspace)
    assert await patient.count("ada", ["w1"]) == FILE_BYTES
    assert await workspaces.count("ada", ["w1"]) == FILE_BYTES
