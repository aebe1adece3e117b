"""The storage quota of an account: what its files, workspaces, messages, jobs and agents may hold together.

Usage is counted at most every `RECOUNT_SECONDS`, and bytes that are written in between are added in memory.
An upload therefore reads no table that grows. An account whose count takes long is counted more rarely, so
that counting takes one percent of the time at most. Each replica counts for itself; what others wrote since
its last count is not yet in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from delivery.background import log_errors
from delivery.database.engine import Database
from gateway.environments.workspaces import Workspaces
from gateway.files.media_types import render_size
from gateway.observability.metrics import Metrics
from gateway.store.accounts import accounts, records, stored_bytes
from gateway.store.accounts.stored_bytes import ROW_BYTES
from gateway.store.conversations import files
from sandbox.errors import SandboxError
from sandbox.labels import namespace
from sandbox.workspaces.sync_plan import FileListing

log = structlog.get_logger(__name__)

RECOUNT_SECONDS = 60.0

RECOUNT_WHEN_FULL_SECONDS = 5.0
"""Seconds after which a full account is counted again: it may have deleted something."""

COUNT_TIME_FACTOR = 100
"""Multiple of the time of a count that passes before the next one."""

FILE_BYTES = 4096
"""What a file counts at least: its rows and blocks."""

MESSAGE_BYTES = 2 * ROW_BYTES
"""What a message counts at least: its row and that of its turn."""

LIMIT_SECONDS = 5.0
"""Seconds for which the limit of an account is cached."""

STORE_SECONDS = 3.0
"""Seconds that a write waits for the workspace store; the last count of the workspaces applies after that."""

CountUsage = Callable[[str], Awaitable[int]]
"""Counts the bytes that an account stores."""

ListWorkspace = Callable[[str, str], Awaitable[FileListing]]
"""Lists the files of an account's workspace."""

ReadLimit = Callable[[str], Awaitable[int | None]]
"""Returns the limit that the operator set for an account; None: the default applies."""


async def _no_limit_of_its_own(_account: str) -> None:
    """Return None: the default applies to every account."""


class StorageFull(Exception):
    """The account may store no more; the message names the amounts and the remedy."""

    def __init__(self, *, used: int, size: int, limit: int) -> None:
        super().__init__(
            f"the account stores {render_size(used)} in files, workspaces, messages, jobs and agents and "
            f"may store {render_size(limit)}: {render_size(size)} more do not fit; delete conversations or "
            "workspace files, or ask the operator to raise the account's limit (PUT /accounts/{id}/storage) "
            "or files.account_bytes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReport:
    """The bytes that an account stores and may store; a limit of 0 is none."""

    used: int
    limit: int


@dataclass(slots=True)
class _Usage:
    """The bytes of one account: `counted` at a time, `added` since, and `pending` while they are written."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: int = 0
    counted_at: float = float("-inf")
    count_took: float = 0.0
    added: int = 0
    pending: int = 0
    limit: int = 0
    limit_read_at: float = float("-inf")

    @property
    def total(self) -> int:
        """Return all of them."""
        return self.counted + self.added + self.pending


class StorageQuota:
    """Admits what accounts write, up to `limit` bytes for each account; 0 means no limit.

    `read_limit` returns the limits of accounts that have their own.
    """

    def __init__(
        self,
        count: CountUsage,
        metrics: Metrics,
        *,
        limit: int,
        read_limit: ReadLimit = _no_limit_of_its_own,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_limit = read_limit
        self._count = count
        self._metrics = metrics
        self._limit = limit
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    @asynccontextmanager
    async def reserve(self, account: str, size: int, *, at_least: int = FILE_BYTES) -> AsyncIterator[None]:
        """Reserve bytes for the block that stores them; raises StorageFull before it. An error frees them."""
        usage = self._usages.setdefault(account, _Usage())
        if not await self._current_limit(account, usage):
            yield
            return
        size = max(size, at_least)
        await self._admit(account, usage, size)
        try:
            yield
            usage.added += size
        finally:
            usage.pending -= size

    async def report(self, account: str) -> StorageReport:
        """Return what an account stores, counted now, and its limit."""
        usage = self._usages.setdefault(account, _Usage())
        async with usage.lock:
            await self._recount(account, usage, after=RECOUNT_WHEN_FULL_SECONDS)
        return StorageReport(used=usage.total, limit=await self._current_limit(account, usage, after=0))

    async def _current_limit(self, account: str, usage: _Usage, *, after: float = LIMIT_SECONDS) -> int:
        if self._clock() - usage.limit_read_at >= after:
            own = await self._read_limit(account)
            usage.limit = self._limit if own is None else own
            usage.limit_read_at = self._clock()
        return usage.limit

    async def _admit(self, account: str, usage: _Usage, size: int) -> None:
        async with usage.lock:
            await self._recount(account, usage, after=RECOUNT_SECONDS)
            if usage.total + size > usage.limit:
                await self._recount(account, usage, after=RECOUNT_WHEN_FULL_SECONDS)
            if usage.total + size > usage.limit:
                self._metrics.count("storage_refusals")
                raise StorageFull(used=usage.total, size=size, limit=usage.limit)
            usage.pending += size

    async def _recount(self, account: str, usage: _Usage, *, after: float) -> None:
        began = self._clock()
        if began - usage.counted_at >= max(after, usage.count_took * COUNT_TIME_FACTOR):
            usage.added = 0
            usage.counted = await self._count(account)
            usage.counted_at = self._clock()
            usage.count_took = usage.counted_at - began


class WorkspaceBytes:
    """Counts what workspaces hold; what needs a count waits neither for a slow store nor for a failing one.

    A message is accepted while the bucket does not answer: the last count of its account's workspaces
    applies, or 0 if there is none. Counting goes on, once for each account at a time.
    """

    def __init__(self, list_workspace: ListWorkspace, *, patience: float = STORE_SECONDS) -> None:
        self._list = list_workspace
        self._patience = patience
        self._counted: dict[str, int] = {}
        self._counting: dict[str, asyncio.Task[None]] = {}

    async def count(self, account: str, workspaces: Sequence[str]) -> int:
        """Return the bytes of an account's workspaces, by their ids; raises nothing of the store."""
        counting = self._counting.get(account)
        if counting is None:
            counting = self._counting[account] = asyncio.create_task(self._recount(account, workspaces))
        done, _ = await asyncio.wait({counting}, timeout=self._patience)
        if not done:
            log.warning("storage_quota.workspaces_slow", account=account, seconds=self._patience)
        return self._counted.get(account, 0)

    async def _recount(self, account: str, workspaces: Sequence[str]) -> None:
        with log_errors("storage_quota.workspaces", account=account):
            try:
                listed = [await self._list(account, workspace) for workspace in workspaces]
                sizes = (max(seen.size, FILE_BYTES) for listing in listed for seen in listing.values())
                self._counted[account] = sum(sizes)
            except SandboxError as error:
                log.warning("storage_quota.workspaces_not_counted", account=account, error=str(error))
            finally:
                del self._counting[account]


def count_usage(database: Database, workspaces: Workspaces) -> CountUsage:
    """Return the function that counts the bytes of an account's stored files, workspaces and rows."""

    async def list_workspace(account: str, workspace: str) -> FileListing:
        return await workspaces.store.replica(namespace(account, workspace)).list()

    workspace_bytes = WorkspaceBytes(list_workspace)

    async def count(account: str) -> int:
        async with database.read() as connection:
            stored = await files.stored_bytes(connection, account, at_least=FILE_BYTES)
            stored += await stored_bytes.stored_bytes(connection, account)
            kept = await records.list_by_kind(connection, account, "workspace")
        return stored + await workspace_bytes.count(account, [workspace.id for workspace in kept])

    return count


def read_limit(database: Database) -> ReadLimit:
    """Return the function that reads the limit of an account from its record."""

    async def read(account: str) -> int | None:
        async with database.read() as connection:
            return await accounts.get_storage_limit(connection, account)

    return read
