"""Connections to PostgreSQL: a server that is gone or frozen is noticed within half a minute.

By default Linux waits a quarter of an hour for the acknowledgement of a machine that disappeared, and checks
an idle connection after two hours. The parameters are those of libpq (PostgreSQL's documentation, "Parameter
Key Words"). The machine of a frozen server acknowledges everything, so a server is also asked whether it
answers while a statement takes long.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

import structlog
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url

from delivery.background import log_errors, wait_for_any

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from sqlalchemy import Engine
    from sqlalchemy.engine import ExceptionContext

_log = structlog.get_logger(__name__)

FAILURE_DETECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""In seconds, but `tcp_user_timeout`, the longest wait for an acknowledgement, in milliseconds."""


_REMEDY = "start that server, or correct database_url; all work waits for it, and goes on by itself"

_LIMIT_REMEDY = (
    "work waits for the connections that the server grants; raise max_connections, or the limit of the user, "
    "the database or the pooler: a gateway uses up to 21"
)


_INSUFFICIENT_PRIVILEGE = "42501"
PRIVILEGE_REMEDY = (
    "let its user create tables in the schema (GRANT CREATE ON SCHEMA public TO the user), and own those "
    "that are there"
)


_READ_ONLY = "25006"
_READ_ONLY_REMEDY = (
    "name the primary if this is a standby (target_session_attrs=read-write chooses it among several hosts), "
    "or turn default_transaction_read_only off for the database or its user"
)
_REMEDIES = {_INSUFFICIENT_PRIVILEGE: PRIVILEGE_REMEDY, _READ_ONLY: _READ_ONLY_REMEDY}


_TIME_LIMITS = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57P05": "idle_session_timeout",
    "57014": "statement_timeout",
}
"""Settings of PostgreSQL that end a transaction or its connection, by the code of the error."""


def time_limit_problem(error: BaseException | None) -> str | None:
    """Return which time limit of PostgreSQL ended a transaction, and the remedy; None: another error."""
    setting = _TIME_LIMITS.get(getattr(error, "sqlstate", None) or "")
    if setting is None or (setting == "statement_timeout" and setting.replace("_", " ") not in str(error)):
        return None  # a statement that somebody cancelled has the same code
    return (
        f"{setting} of PostgreSQL ended a transaction: turn it off for the gateway's user "
        f"(ALTER ROLE name SET {setting} = 0), or set it to a minute or more"
    )


def refusal_remedy(error: BaseException) -> str | None:
    """Return what to do if PostgreSQL does not let its user do what a statement does; None: it does."""
    return _REMEDIES.get(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


class DatabaseUnsuitable(Exception):
    """A gateway cannot run on this database as it is set up; `remedy` says what to change."""

    remedy: ClassVar[str]


class EncodingUnsuitable(DatabaseUnsuitable):
    """The encoding of a database cannot store all characters."""

    remedy: ClassVar[str] = (
        "Create one with ENCODING 'UTF8' and TEMPLATE template0, such as with `createdb --encoding=UTF8 "
        "--template=template0`, and move the rows of this one with pg_dump if it has any"
    )

    def __init__(self, encoding: str) -> None:
        super().__init__(f"the encoding of the database is {encoding}, which cannot store every message")


def require_utf8(adapted: Any, _record: object) -> None:
    """Raise EncodingUnsuitable if a new connection leads to a database that is not in UTF-8."""
    encoding = adapted.driver_connection.info.parameter_status("server_encoding")
    if encoding not in (None, "UTF8"):
        raise EncodingUnsuitable(encoding)


def with_failure_detection(url: URL | str) -> URL:
    """Return the URL of a database with these parameters, unless it names them; SQLite has none."""
    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        return place
    return place.update_query_dict({**FAILURE_DETECTION, **place.query})


def server_problem(error: BaseException | None) -> str:
    """Return what libpq says in one line: without its hints, and of several servers each reason once."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith(("\t", "Multiple "))]
    return "; ".join(dict.fromkeys(line.rpartition("connection failed: ")[2] for line in lines))


def is_silence(error: BaseException | None) -> bool:
    """Return whether a server did not answer to a new connection, rather than refuse it."""
    from psycopg.errors import ConnectionTimeout

    return isinstance(error, ConnectionTimeout)


_SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""Asks whether the server encrypts. It answers with one byte, before any authentication."""


class _Server(NamedTuple):
    host: str
    port: int


class ServerWatch:
    """Ends the connections that wait for a server which answers nothing: their statements fail.

    A server that answers may take any time for a statement.
    """

    def __init__(self, *, interval: float = 2.0, patience: float = 5.0, answer_within: float = 10.0) -> None:
        self._interval = interval
        self._patience = patience
        self._answer_within = answer_within
        self.opened = 0
        """How many connections have been opened; a new one may lead to another server."""
        self._lost_at: float | None = None
        """When the first connection was lost, or not made, since one was opened last."""
        self._is_away = False
        """Whether a connection could not be made since then."""
        self._is_limited = False
        """Whether a further connection was refused since then."""
        self._is_running = False
        self._connections: WeakSet[AsyncConnection[Any]] = WeakSet()
        self._waiting_since: dict[AsyncConnection[Any], float] = {}

    def attach(self, engine: Engine) -> None:
        """Watch each connection that an engine opens."""
        event.listen(engine, "connect", lambda adapted, _record: self._add(adapted.driver_connection))
        event.listen(engine, "handle_error", self._note_failure)

    def _note_failure(self, context: ExceptionContext) -> None:
        is_refused = context.connection is None and not context.is_pre_ping
        if self._lost_at is None and (context.is_disconnect or is_refused):
            self._lost_at = monotonic()

    def note_absence(self, error: BaseException | None) -> None:
        """Note that no connection could be made, and log the begin of an outage.

        A command, which nothing watches, shows the error itself.
        """
        if not self._is_away and self._is_running:
            _log.warning("database.unavailable", error=server_problem(error), remedy=_REMEDY)
        self._is_away = True

    def note_limit(self) -> None:
        """Log that the server refused a further connection, and one that is open was used."""
        self._lost_at = None
        if not self._is_limited and self._is_running:
            _log.warning("database.connections_limited", remedy=_LIMIT_REMEDY)
        self._is_limited = True

    def _add(self, connection: AsyncConnection[Any]) -> None:
        self._connections.add(connection)
        self.opened += 1
        if self._lost_at is not None and self._is_away:
            _log.warning("database.reconnected", seconds=round(monotonic() - self._lost_at, 1))
        self._lost_at, self._is_away, self._is_limited = None, False, False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch until the block ends."""
        stop = asyncio.Event()
        watching = asyncio.create_task(self._run(stop))
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            stop.set()
            await watching

    async def _run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await wait_for_any(stop, timeout=self._interval)
            with log_errors("database.watch"):
                if not stop.is_set():
                    await self._end_unanswered()

    async def _end_unanswered(self) -> None:
        now = asyncio.get_running_loop().time()
        waiting = [one for one in self._connections if _is_waiting(one)]
        self._waiting_since = {one: self._waiting_since.get(one, now) for one in waiting}
        servers: dict[_Server, list[AsyncConnection[Any]]] = defaultdict(list)
        for one, since in self._waiting_since.items():
            if now - since >= self._patience:
                servers[_server_of(one)].append(one)
        silent = [(server, held) for server, held in servers.items() if not await self._answers(server)]
        for server, held in silent:
            _log.warning("database.connections_ended", server=server.host, connections=len(held))
            for one in held:
                _shut_down(one)

    async def _answers(self, server: _Server) -> bool:
        """Return whether a server answers or refuses a new connection; silence alone is no answer."""
        try:
            async with asyncio.timeout(self._answer_within):
                await _ask(server)
        except TimeoutError:
            return False
        except OSError:  # the system ends the connections of a server that is gone
            return True
        return True


async def _ask(server: _Server) -> None:
    if server.host.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(f"{server.host}/.s.PGSQL.{server.port}")
    else:
        reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(_SSL_REQUEST)
        await reader.read(1)
    finally:
        writer.close()


def _is_waiting(connection: AsyncConnection[Any]) -> bool:
    """Return whether a statement has been sent and is not answered."""
    from psycopg.pq import TransactionStatus

    return connection.pgconn.transaction_status == TransactionStatus.ACTIVE


def _server_of(connection: AsyncConnection[Any]) -> _Server:
    """Return the server to which a connection leads, of several that the URL may name."""
    pgconn = connection.pgconn
    return _Server((pgconn.hostaddr or pgconn.host).decode(), int(pgconn.port))


def _shut_down(connection: AsyncConnection[Any]) -> None:
    """End a connection on this side: what waits for it fails at once, as if the server had closed it.

    One that the system has ended meanwhile has no socket any more.
    """
    from psycopg import OperationalError

    with suppress(OSError, OperationalError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as used:
        used.shutdown(socket.SHUT_RDWR)
