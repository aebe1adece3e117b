"""The claim of a database by a process: alone, or together with others that also expect company.

On PostgreSQL it is an advisory lock of a session, so the server releases it when the process dies, and soon
after its machine does. On SQLite it is a lock on a file beside the database. A claim that is lost because the
server restarted is acquired again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar, Protocol

import structlog
from sqlalchemy import column, event, func, select, table, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from delivery.background import log_errors
from delivery.database.async_engine import AsyncConnection, create_async_engine
from delivery.database.engine import Database
from delivery.database.postgres import (
    DatabaseUnsuitable,
    require_utf8,
    server_problem,
    with_failure_detection,
)

log = structlog.get_logger(__name__)

_LOCK = (0x646F7665, 1)
"""The two numbers of the advisory lock; each database of a server has its own."""

_IDENTITY = text(
    "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "FROM pg_control_system()"
)
_RETRY_SECONDS = 0.2
_RELEASE_SECONDS = 2.0
CHECK_SECONDS = 5.0
"""Seconds between checks that the claim is still held."""

_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""With these the server notices within half a minute that the machine of a claim is gone."""


class DatabaseClaimed(Exception):
    """Another process has claimed the database; `holder` describes it."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"another gateway uses this database ({holder})")
        self.holder = holder


class ServerUnavailable(OSError):
    """The server of the claimed database does not answer."""

    is_outage: ClassVar[bool] = True


class SessionsPooled(DatabaseUnsuitable):
    """A pooler gives several connections one session of the server, so no process can hold a lock."""

    remedy: ClassVar[str] = (
        "Locks of the gateway would stay behind, and another gateway would have them too. Set the pool mode "
        "of PgBouncer to session for this database, or name the server itself"
    )

    def __init__(self) -> None:
        super().__init__("a pooler gives several connections the same session of PostgreSQL")


class _Claim(Protocol):
    """A claim of one kind of database."""

    @abstractmethod
    async def check(self) -> None:
        """Raise SessionsPooled if the claim would be that of other connections too, or EncodingUnsuitable."""

    @abstractmethod
    async def acquire(self) -> bool:
        """Acquire the claim, or check that it is held; False: another process has it."""

    @abstractmethod
    async def describe_holder(self) -> str:
        """Return who has the claim."""

    @abstractmethod
    async def release(self) -> None:
        """Release the claim."""


@asynccontextmanager
async def claim_database(
    database_url: str, *, shared: bool, owner: str, patience: float = 10.0
) -> AsyncIterator[None]:
    """Claim a database until the block ends, with `shared` beside others that also claim it shared.

    `owner` names this process to an operator. Waits `patience` seconds for a process that is just ending,
    then raises DatabaseClaimed. Raises SessionsPooled at once behind PgBouncer in the mode `transaction`,
    and EncodingUnsuitable for a database of PostgreSQL that is not in UTF-8.
    """
    url = make_url(database_url)
    claim = _SqliteClaim(url) if url.get_backend_name() == "sqlite" else _PostgresClaim(url, shared, owner)
    try:
        await claim.check()
        await _acquire_within(claim, patience)
        stop = asyncio.Event()
        keeping = asyncio.create_task(_keep(claim, stop))
        try:
            yield
        finally:
            stop.set()
            await keeping
    finally:
        await claim.release()


async def _acquire_within(claim: _Claim, patience: float) -> None:
    deadline = asyncio.get_running_loop().time() + patience
    while not await claim.acquire():
        if asyncio.get_running_loop().time() > deadline:
            raise DatabaseClaimed(await claim.describe_holder())
        await asyncio.sleep(_RETRY_SECONDS)


async def _keep(claim: _Claim, stop: asyncio.Event) -> None:
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await stop.wait()
        with log_errors("database.claim"):
            if not stop.is_set() and not await claim.acquire():
                log.error(
                    "database.claimed_by_another",
                    holder=await claim.describe_holder(),
                    remedy="stop one of the two gateways, or set replicas to their number in both",
                )


class _PostgresClaim(_Claim):
    """An advisory lock, held by a session of its own."""

    def __init__(self, url: URL, shared: bool, owner: str) -> None:  # noqa: FBT001 - private
        self._engine = create_async_engine(
            with_failure_detection(url),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
        # Before the dialect's own statements, which fail on answers in SQL_ASCII.
        event.listen(self._engine.sync_engine, "connect", require_utf8, insert=True)
        lock = func.pg_try_advisory_lock_shared if shared else func.pg_try_advisory_lock
        self._try_lock = select(lock(*_LOCK))
        self._owner = owner
        self._connection: AsyncConnection | None = None
        self._is_held = False

    async def check(self) -> None:
        """Compare the sessions of two connections that are open at once."""
        session = select(func.pg_backend_pid())
        try:
            async with self._engine.connect() as first, self._engine.connect() as second:
                sessions = [(await one.execute(session)).scalar_one() for one in (first, second)]
        except DBAPIError as error:
            raise _unavailable(error) from error
        if len(set(sessions)) == 1:
            raise SessionsPooled

    async def acquire(self) -> bool:
        try:
            connection = await self._connect()
            if self._is_held:
                await connection.execute(select(1))
            else:
                self._is_held = bool((await connection.execute(self._try_lock)).scalar_one())
        except DBAPIError as error:
            await self._disconnect()
            raise _unavailable(error) from error
        return self._is_held

    async def _connect(self) -> AsyncConnection:
        if self._connection is None:
            self._connection = await self._engine.connect()
            values = _KEEPALIVE | {"application_name": self._owner}
            for name, value in values.items():
                await self._connection.execute(select(func.set_config(name, value, False)))  # noqa: FBT003
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            with suppress(DBAPIError):
                await connection.close()

    async def describe_holder(self) -> str:
        locks = table("pg_locks", *map(column, ("pid", "locktype", "classid", "objid", "granted")))
        sessions = table("pg_stat_activity", *map(column, ("pid", "application_name", "client_addr")))
        found = await (await self._connect()).execute(
            select(sessions.c.application_name, func.host(sessions.c.client_addr))
            .join(locks, locks.c.pid == sessions.c.pid)
            .where(locks.c.locktype == "advisory", locks.c.granted)
            .where(locks.c.classid == _LOCK[0], locks.c.objid == _LOCK[1])
        )
        return "; ".join(f"{name} at {address or 'this machine'}" for name, address in found) or "unknown"

    async def release(self) -> None:
        if self._is_held and self._connection is not None:
            # The server, and a pooler, end a closed session later: the next process would have to wait.
            with suppress(DBAPIError, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._connection.execute(select(func.pg_advisory_unlock_all()))
        await self._disconnect()
        await self._engine.dispose()


async def database_identity(database: Database) -> str | None:
    """Return the same text for each process on this database, and another one for a copy of it.

    A standby that takes over has the identity of its primary. None: the server does not tell its identity.
    """
    if database.is_sqlite:
        found = await asyncio.to_thread(Path(str(make_url(database.url).database)).stat)
        parts = (socket.gethostname(), found.st_dev, found.st_ino)
    else:
        try:
            async with database.read() as connection:
                parts = tuple((await connection.execute(_IDENTITY)).one())
        except DBAPIError as error:
            log.debug("database.identity_unknown", error=str(error.orig))
            return None
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _unavailable(error: DBAPIError) -> Exception:
    """Return the error to raise: ServerUnavailable if the server does not answer."""
    if error.connection_invalidated or isinstance(error, OperationalError):
        return ServerUnavailable(f"the database does not answer: {server_problem(error.orig)}")
    return error


class _SqliteClaim(_Claim):
    """A lock on a file beside the database, which only one process can use."""

    def __init__(self, url: URL) -> None:
        self._file = Path(f"{url.database}.lock")
        self._descriptor: int | None = None

    async def check(self) -> None:
        """Do nothing: a file has no pooler."""

    async def acquire(self) -> bool:
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return True

    async def describe_holder(self) -> str:
        return f"process {self._file.read_text().strip() or 'unknown'}, lock file {self._file}"

    async def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
