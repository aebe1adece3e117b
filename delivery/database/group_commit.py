"""Group commit: transactions that wait for the SQLite write lock are committed in one batch.

Each writer has its own savepoint, so that a failure rolls back only its own changes. A writer that is alone
in its batch needs none. A writer continues once the whole batch is on disk. A batch is committed after as
many writers as were waiting when it began (but not more than `MAX_BATCH`), or immediately after an urgent
one. The accounts of the waiting writers take turns, so that many writers of one account delay a writer of
another by one batch at most.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from enum import IntEnum
from typing import Any

from sqlalchemy.ext.asyncio import AsyncTransaction

from delivery.database import sqlite
from delivery.database.direct_execution import DirectConnection, as_database_error
from delivery.fair_gate import ahead_of_accounts, current_account
from delivery.fair_scheduler import FairScheduler, PoolSize

MAX_BATCH = 32
"""Writers whose changes are committed together; a longer batch saves little and delays all of them."""

OpenConnection = Callable[[], AbstractAsyncContextManager[DirectConnection]]


class BatchAborted(RuntimeError):
    """The database rolled the whole transaction back; nothing was written."""


class WriteOrder(IntEnum):
    """Who gets the lock first: urgent writers, then the others, then the commit of what they wrote."""

    URGENT = 0
    NORMAL = 1
    COMMIT = 2


class FairLock:
    """A lock for one holder at a time, in the order of `WriteOrder`.

    Within each kind the accounts take turns, and the writers of one account keep their order of arrival.
    """

    def __init__(self) -> None:
        self._queues = {
            order: FairScheduler[asyncio.Future[None]](PoolSize(places=1)) for order in WriteOrder
        }
        self._locked = False
        self._writers = 0

    @property
    def waiting_writers(self) -> int:
        """Return how many writers wait."""
        return self._writers

    @asynccontextmanager
    async def acquire(self, order: WriteOrder = WriteOrder.NORMAL) -> AsyncIterator[None]:
        """Hold the lock during the block, for the account of the current task."""
        account = current_account()
        if self._locked:
            await self._wait(order, account)
        self._locked = True
        try:
            yield
        finally:
            self._release()

    async def _wait(self, order: WriteOrder, account: str) -> None:
        granted, queue = asyncio.get_running_loop().create_future(), self._queues[order]
        queue.add(account, granted)
        self._writers += order is not WriteOrder.COMMIT
        try:
            await granted
        except asyncio.CancelledError:
            queue.discard(account, granted)
            if not granted.cancelled():
                self._release()  # the lock had been granted already
            raise
        finally:
            self._writers -= order is not WriteOrder.COMMIT

    def _release(self) -> None:
        """Pass the lock to the next waiter without unlocking it, so that a newcomer cannot overtake."""
        for queue in self._queues.values():
            while (entry := queue.start_next()) is not None:
                account, waiter = entry
                queue.finish(account)  # the lock itself admits one holder at a time
                if not waiter.done():  # else it was cancelled
                    waiter.set_result(None)
                    return
        self._locked = False


class _Batch:
    """An open transaction; `done` resolves when it is committed, or fails with the error of the commit."""

    def __init__(
        self,
        connection: DirectConnection,
        transaction: AsyncTransaction,
        exit_stack: AsyncExitStack,
        *,
        size: int,
    ) -> None:
        self.missing = size
        self.connection = connection
        self.transaction = transaction
        self.exit_stack = exit_stack
        self.aborted = False
        self.entries = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def entry(self, *, alone: bool) -> AsyncIterator[None]:
        """Roll back what the block has written when it fails; `alone`: that is the whole transaction."""
        async with self._abort_on_error() if alone else self._savepoint():
            yield
        self.entries += 1

    @asynccontextmanager
    async def _abort_on_error(self) -> AsyncIterator[None]:
        """Have whoever gets the lock next roll back the transaction."""
        try:
            yield
        except BaseException:
            self.aborted = True
            raise

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        await self._execute("SAVEPOINT entry")
        try:
            yield
        except BaseException:
            await self._rollback()
            raise
        await self._execute("RELEASE entry")

    async def _rollback(self) -> None:
        with suppress(BatchAborted):
            await self._execute("ROLLBACK TO entry")
            await self._execute("RELEASE entry")

    async def _execute(self, statement: str) -> None:
        """Run a statement without parameters and rows, past SQLAlchemy, which takes longer than SQLite."""
        try:
            await (await self.connection.driver.execute(statement)).close()
        except sqlite3.Error as error:  # a full disk, for example, rolls back the whole transaction
            self.aborted = True
            raise BatchAborted from error

    async def commit(self) -> None:
        """Commit the transaction and resolve `done`."""
        try:
            async with self.exit_stack:
                await self._commit()
        except Exception as error:  # noqa: BLE001 - every writer of the batch gets the error
            self.done.set_exception(error)
            self.done.exception()  # marks it as retrieved, if no writer waits any more
        else:
            self.done.set_result(None)

    async def _commit(self) -> None:
        if self.aborted:
            raise BatchAborted
        await self.transaction.commit()


class GroupCommit:
    """Writing transactions on one SQLite file, in batches; `connect` opens a connection."""

    def __init__(self, connect: OpenConnection) -> None:
        self._connect = connect
        self._lock = FairLock()
        self._batch: _Batch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def begin(self, *, urgent: bool) -> AsyncIterator[DirectConnection]:
        """Open a transaction; when the block has ended, its changes are on disk."""
        order = WriteOrder.URGENT if urgent else WriteOrder.NORMAL
        with ahead_of_accounts():  # the other writers wait for each step of this one
            async with self._lock.acquire(order):
                batch = await self._join_batch()
                batch.missing -= 1
                is_last = urgent or batch.missing <= 0
                async with batch.entry(alone=batch.entries == 0 and is_last):
                    yield batch.connection
                if is_last:
                    await asyncio.shield(self._start(self._commit(batch)))
        await asyncio.shield(batch.done)

    async def close(self) -> None:
        """Wait for the commits in progress."""
        await asyncio.gather(*self._tasks)

    async def _join_batch(self) -> _Batch:
        if self._batch is not None and self._batch.aborted:
            await self._commit(self._batch)
        if self._batch is None:
            self._batch = await self._begin_batch()
            self._start(self._commit_when_idle(self._batch))
        return self._batch

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a commit in its own task, so that it continues when its writer is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _begin_batch(self) -> _Batch:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._connect())
            transaction = await connection.begin()
            try:
                await connection.driver.begin()
            except sqlite3.Error as error:
                raise as_database_error(error, sqlite.BEGIN, connection.dialect) from error
            await asyncio.sleep(0)  # writers that are ready wait for the lock now
            size = min(MAX_BATCH, 1 + self._lock.waiting_writers)
            return _Batch(connection, transaction, stack.pop_all(), size=size)

    async def _commit_when_idle(self, batch: _Batch) -> None:
        """Commit a batch that writers have left, so that it stays smaller than planned."""
        async with self._lock.acquire(WriteOrder.COMMIT):
            await self._commit(batch)

    async def _commit(self, batch: _Batch) -> None:
        if self._batch is batch:  # else an urgent writer has committed it
            self._batch = None
            await batch.commit()
