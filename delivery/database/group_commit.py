"""Group commit: transactions that wait for the SQLite write lock are committed in one batch.

The first writer of a batch needs no savepoint: if it fails, the whole transaction is rolled back, and the
next writer begins another one. Each further writer has its own savepoint, so that a failure rolls back only
its own changes. A writer continues once the whole batch is on disk. A batch is committed after as many
writers as were waiting when it began (but not more than `MAX_BATCH`), or immediately after an urgent one.

The accounts of the waiting writers take turns. A batch with writers of several accounts is also committed
after the first writer of the second account, as long as commits take less than half of the time; else once it
has been open for as long as the commit before it took. So many writers of one account delay a writer of
another by two commits at most.

The commit is one call in the connection's thread. It belongs to no task: the last writer of a batch starts
it, the lock stays held during the commit, and its end is a callback that resumes the writers. So a writer
that is cancelled neither stops it nor leaves it undone.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from time import perf_counter

from delivery.database import sqlite
from delivery.database.direct_execution import DirectConnection, as_database_error
from delivery.database.fair_lock import FairLock
from delivery.fair_gate import ahead_of_accounts, current_account

MAX_BATCH = 32
"""Writers whose changes are committed together; a longer batch saves little and delays all of them."""

SPARE_SECONDS = 0.05
"""The most time without commits that is remembered, and may be used up by early commits."""

OpenConnection = Callable[[], Awaitable[DirectConnection]]


class BatchAborted(RuntimeError):
    """The database rolled the whole transaction back; nothing was written."""


class _Batch:
    """An open transaction, and the writers that wait until it is on disk.

    `size`: writers after which it ends; `shared_seconds`: the time after which it ends if it has writers of
    several accounts.
    """

    def __init__(self, connection: DirectConnection, *, size: int, shared_seconds: float) -> None:
        self.connection = connection
        self.missing = size
        self.aborted = False
        self._accounts: set[str] = set()
        self._shared_until = perf_counter() + shared_seconds
        self._entered = False
        self._has_savepoint = False
        self._driver = connection.driver
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        """Return whether the batch ends now."""
        is_shared = len(self._accounts) > 1
        return self.aborted or self.missing <= 0 or (is_shared and perf_counter() >= self._shared_until)

    def enter(self, *, urgent: bool) -> None:
        """Begin the changes of one writer, for the account of the current task."""
        self._accounts.add(current_account())
        self.missing = 0 if urgent else self.missing - 1
        self._has_savepoint, self._entered = self._entered, True
        if self._has_savepoint:
            self._execute("SAVEPOINT entry")

    def leave(self) -> None:
        """End the changes of a writer that succeeded."""
        if self._has_savepoint:
            self._execute("RELEASE entry")
        elif not self._is_open():
            self.aborted = True
            raise BatchAborted

    def undo(self) -> None:
        """Roll back the changes of a writer that failed."""
        if not self._has_savepoint:
            self.aborted = True  # it is the only writer
            return
        with suppress(BatchAborted):
            self._execute("ROLLBACK TO entry")
            self._execute("RELEASE entry")

    async def wait_written(self) -> None:
        """Wait until the batch is on disk; raises the error of the commit."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        await written

    def end(self, ended: Callable[[Exception | None], None]) -> None:
        """Commit, or roll back if the batch was aborted, and then call `ended`."""
        self._driver.end(ended, commit=not self.aborted)

    def resume_writers(self, error: Exception | None) -> None:
        """Resume the writers that wait, with the error of the commit if there is one."""
        for writer in self._waiting:
            if writer.done():  # it was cancelled
                continue
            if error is None:
                writer.set_result(None)
            else:
                writer.set_exception(error)

    def _is_open(self) -> bool:
        """Return whether SQLite still has the transaction; it rolls back by itself if the disk is full."""
        database = self._driver.idle_database
        return database is None or database.in_transaction

    def _execute(self, statement: str) -> None:
        """Run a statement without parameters and rows, past SQLAlchemy, which takes longer than SQLite."""
        try:
            self._driver.execute_inline(statement)
        except sqlite3.Error as error:  # a full disk, for example, rolls back the whole transaction
            self.aborted = True
            raise BatchAborted from error


class GroupCommit:
    """Writing transactions on one SQLite file, in batches.

    `connect` opens a connection, and `translate_errors` translates the errors of a block.
    """

    def __init__(
        self, connect: OpenConnection, translate_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._connect = connect
        self._translate_errors = translate_errors
        self._connection: DirectConnection | None = None
        self._is_sound = True
        self._commit_seconds = 0.0
        self._spare_seconds = 0.0
        self._last_end = 0.0
        self._lock = FairLock(before_unlock=self._end_batch)
        self._batch: _Batch | None = None

    @asynccontextmanager
    async def begin(self, *, urgent: bool) -> AsyncIterator[DirectConnection]:
        """Open a transaction; when the block has ended, its changes are on disk."""
        with self._translate_errors():
            with ahead_of_accounts():  # the other writers wait for each step of this one
                await self._lock.acquire(urgent=urgent)
                try:
                    batch = self._batch = self._batch or await self._begin_batch()
                    batch.enter(urgent=urgent)
                    try:
                        yield batch.connection
                    except BaseException:
                        batch.undo()
                        raise
                    batch.leave()
                finally:
                    self._pass_on()
            await batch.wait_written()

    async def close(self) -> None:
        """Wait for the commit in progress and close the connection."""
        await self._lock.acquire()
        while self._end_batch():  # the batch of the writer before; it releases the lock
            await self._lock.acquire()
        try:
            await self._close_connection()
        finally:
            self._lock.release()

    def _pass_on(self) -> None:
        """Let the next writer join the batch, or end it if it is full or no writer waits."""
        if self._batch is None or not self._batch.is_full or not self._end_batch():
            self._lock.release()

    def _end_batch(self) -> bool:
        """Commit the open batch, if there is one; the lock is released when that is over."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.end(partial(self._ended, batch, perf_counter()))
        return batch is not None

    def _ended(self, batch: _Batch, begun: float, error: Exception | None) -> None:
        """Resume the writers of a batch, whose commit has begun then, and those that wait for the lock."""
        end = perf_counter()
        self._commit_seconds = end - begun
        self._spare_seconds += begun - self._last_end - self._commit_seconds
        self._spare_seconds = min(max(self._spare_seconds, 0.0), SPARE_SECONDS)
        self._last_end = end
        if isinstance(error, sqlite3.Error):
            error = as_database_error(error, "COMMIT", batch.connection.dialect)
        self._is_sound = error is None
        batch.resume_writers(BatchAborted() if batch.aborted and error is None else error)
        self._lock.release()

    async def _begin_batch(self) -> _Batch:
        connection = await self._idle_connection()
        try:
            await connection.driver.begin()
            await asyncio.sleep(0)  # writers that are ready wait for the lock now
        except BaseException as error:
            await self._close_connection()
            if isinstance(error, sqlite3.Error):
                raise as_database_error(error, sqlite.BEGIN, connection.dialect) from error
            raise
        size = min(MAX_BATCH, 1 + self._lock.waiters)
        shared_seconds = max(self._commit_seconds - self._spare_seconds, 0.0)
        return _Batch(connection, size=size, shared_seconds=shared_seconds)

    async def _idle_connection(self) -> DirectConnection:
        """Return the writers' connection, without what SQLAlchemy remembers of the batch before."""
        if not self._is_sound:
            await self._close_connection()
        if self._connection is None:
            self._connection = await self._connect()
        elif self._connection.in_transaction():
            await self._connection.commit()
        self._connection.prepare()
        return self._connection

    async def _close_connection(self) -> None:
        connection, self._connection, self._is_sound = self._connection, None, True
        if connection is not None:
            await connection.close()
