"""Group commit: what waits for the one writer's turn together is committed together.

Each entry stands in a savepoint of its own, so that one that fails takes nothing of the others with it; it
is over for its writer once the whole batch is on the disk. A batch is committed when those have written who
waited when it began, or at once after an entry in a hurry.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction

from delivery.database import sqlite

OpenConnection = Callable[[], AbstractAsyncContextManager[AsyncConnection]]


class BatchAborted(RuntimeError):
    """The database gave the whole transaction up; nothing of it was written."""


class FairLock:
    """Lets one through at a time: those in a hurry first, each kind in arrival order."""

    def __init__(self) -> None:
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {True: deque(), False: deque()}
        self._locked = False

    @asynccontextmanager
    async def acquire(self, *, urgent: bool) -> AsyncIterator[None]:
        """Wait for our turn, and let the next one in at the end."""
        if self._locked:
            await self._wait(self._waiting[urgent])
        self._locked = True
        try:
            yield
        finally:
            self._release()

    async def _wait(self, waiters: deque[asyncio.Future[None]]) -> None:
        ours = asyncio.get_running_loop().create_future()
        waiters.append(ours)
        try:
            await ours
        except asyncio.CancelledError:
            if not ours.cancelled():
                self._release()  # it was our turn already
            raise

    def _release(self) -> None:
        """Hand the door over without opening it in between, so that nobody slips past those who wait."""
        for urgent in (True, False):
            while self._waiting[urgent]:
                next_one = self._waiting[urgent].popleft()
                if not next_one.done():  # else it has given up waiting
                    next_one.set_result(None)
                    return
        self._locked = False


class _Batch:
    """An open transaction; `done` is when it is committed, or the error that it ended with."""

    def __init__(
        self,
        connection: AsyncConnection,
        driver: aiosqlite.Connection,
        transaction: AsyncTransaction,
        exit_stack: AsyncExitStack,
    ) -> None:
        self.connection = connection
        self._driver = driver
        self.transaction = transaction
        self.exit_stack = exit_stack
        self.aborted = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo what is written in the block when it fails."""
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
        """Run a statement without parameters and rows: SQLAlchemy would take longer than SQLite does."""
        try:
            await (await self._driver.execute(statement)).close()
        except sqlite3.Error as error:  # a full disk, for one, takes the savepoint with the transaction
            self.aborted = True
            raise BatchAborted from error

    async def commit(self) -> None:
        """End the transaction and tell everybody who is in it."""
        try:
            async with self.exit_stack:
                await self._commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to every writer of the batch
            self.done.set_exception(error)
            self.done.exception()  # also when none of them waits any more
        else:
            self.done.set_result(None)

    async def _commit(self) -> None:
        if self.aborted:
            raise BatchAborted
        await self.transaction.commit()


class GroupCommit:
    """Writing transactions on one SQLite file, in turn. `connect` opens a connection."""

    def __init__(self, connect: OpenConnection) -> None:
        self._connect = connect
        self._lock = FairLock()
        self._batch: _Batch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def begin(self, *, urgent: bool) -> AsyncIterator[AsyncConnection]:
        """Write when it is our turn; at the end of the block everything in it is on the disk."""
        async with self._lock.acquire(urgent=urgent):
            batch = await self._join_batch()
            async with batch.savepoint():
                yield batch.connection
            if urgent:
                await asyncio.shield(self._start(self._commit(batch)))
        await asyncio.shield(batch.done)

    async def close(self) -> None:
        """Wait for what is being committed."""
        await asyncio.gather(*self._tasks)

    async def _join_batch(self) -> _Batch:
        if self._batch is not None and self._batch.aborted:
            await self._commit(self._batch)
        if self._batch is None:
            self._batch = await self._begin_batch()
            self._start(self._commit_in_turn(self._batch))
        return self._batch

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a commit go on whatever becomes of the writer who asked for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _begin_batch(self) -> _Batch:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._connect())
            transaction = await connection.begin()
            await connection.exec_driver_sql(sqlite.BEGIN)
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, aiosqlite.Connection)
            return _Batch(connection, driver, transaction, stack.pop_all())

    async def _commit_in_turn(self, batch: _Batch) -> None:
        async with self._lock.acquire(urgent=False):
            await self._commit(batch)

    async def _commit(self, batch: _Batch) -> None:
        if self._batch is batch:  # else somebody in a hurry has done it
            self._batch = None
            await batch.commit()
