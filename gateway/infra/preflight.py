"""Check the servers of the settings at the start; errors name the setting."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.stream_config import StreamConfig
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.database.instance_claim import DatabaseClaimed, claim_database
from delivery.database.postgres import DatabaseUnsuitable, refusal_remedy
from delivery.database.sqlite import is_damaged
from delivery.errors import DeliveryError
from delivery.exhaustion import EXHAUSTED, Resource, error_chain, exhausted_resource
from gateway.accounts.key_rotation import check_keys
from gateway.accounts.vault import DecryptionFailed, Vault, key_file, open_vault
from gateway.config.settings import Settings
from gateway.infra.data_dir import COPIED_NAME, separate_disks
from gateway.migrations import migrate_up
from gateway.records.rules.sandbox_ceilings import FIRST_ACCOUNT
from gateway.store.accounts.accounts import get_account

DAY_SECONDS = 86400.0


def wanted_streams(settings: Settings) -> StreamConfig:
    """Return the streams that the settings ask for."""
    return StreamConfig(
        retention_days=settings.event_max_age / DAY_SECONDS, event_log_bytes=settings.event_log_bytes
    )


class DependencyUnavailable(Exception):
    """A configured server cannot be used; the message names setting, host, cause and remedy."""

    def __init__(
        self,
        setting: str,
        url: SecretStr,
        error: BaseException,
        *,
        fallback: str,
        remedy: str = "start that server or correct the URL",
    ) -> None:
        places = ", ".join(_host(one) for one in url.get_secret_value().split(","))
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        super().__init__(
            f"{setting} = {places} (DOVECOTE_{setting.upper()}): {why}. "
            f"To continue, {remedy}; without the setting {fallback}"
        )


class DatabaseFileUnusable(Exception):
    """The SQLite file of the settings cannot be opened; the message names setting, path, cause and remedy."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(
            f"database_url = {make_url(url).database} (DOVECOTE_DATABASE_URL): {reason}. "
            f"To continue, {remedy}; "
            "without the setting dovecote.db of the data directory is used"
        )


def sqlite_file_problem(url: str) -> tuple[str, str] | None:
    """Return why a SQLite file of this URL cannot be opened, and the remedy; None if it can be.

    Nothing is created.
    """
    place = make_url(url)
    if place.get_backend_name() != "sqlite" or not place.database:
        return None
    file = Path(place.database)
    if file.is_dir():
        return f"{file} is a directory, not a SQLite file", "move it away, or correct the path"
    if not file.parent.is_dir():
        return f"there is no directory {file.parent}", "create it for this user, or correct the path"
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return f"this user cannot write to the directory {file.parent}", "permit it, or correct the path"
    return None


class DatabaseLeftBehind(Exception):
    """The configured database is new, and the data directory has another one with this gateway's data."""

    def __init__(self, settings: Settings, left: Path) -> None:
        place = make_url(settings.database)
        super().__init__(
            f"database_url = {place.host or place.database or place.get_backend_name()} "
            f"(DOVECOTE_DATABASE_URL): no gateway has run on this database, and {left} has the "
            "conversations, jobs, schedules and records of this data directory. `dovecote migrate copy` "
            "copies them. To go on with the file, leave the setting out; to start without it, name another "
            f"data directory, or move {left} away"
        )


class DatabaseLost(Exception):
    """The SQLite file is missing or empty, and the data directory has what belongs to its rows."""

    def __init__(self, settings: Settings, file: Path, left: Sequence[Path]) -> None:
        state, names = "is empty" if file.exists() else "is missing", " and ".join(map(str, left))
        copied = settings.data_dir / COPIED_NAME
        self.detail = f"the SQLite file {file} {state}, and a gateway that had its rows has left {names}"
        self.remedy = (
            f"set database_url (DOVECOTE_DATABASE_URL) to where the rows of {copied} were copied"
            if copied.exists()
            else f"put the file back with its -wal, or copy dovecote.db of a backup to {file}"
        )
        super().__init__(
            f"{self.detail}. Nothing was changed. To go on, {self.remedy}, and start again. To begin without "
            "its conversations, jobs and records, choose another data directory (--data, DOVECOTE_DATA_DIR), "
            f"or move {names} away"
        )


_MADE_WITH_ROWS = {
    "nats": "nats/store/jetstream/$G/streams/EVENTS",
    "files": "files",
    "workspaces": "workspaces",
    "snapshots": "snapshots",
}
"""Directories by their name in the data directory, with what has contents only if the database has rows."""


def find_lost_database(settings: Settings) -> DatabaseLost | None:
    """Return the error of dovecote.db that is missing or empty beside what belongs to its rows, or None.

    Another database that the settings name may be new.
    """
    data = settings.data_dir
    place, file = make_url(settings.database), data / "dovecote.db"
    if place.get_backend_name() != "sqlite" or Path(place.database or "").resolve() != file.resolve():
        return None
    if file.exists() and file.stat().st_size > 0:
        return None
    left = [data / name for name, place in _MADE_WITH_ROWS.items() if _has_contents(data / place)]
    return DatabaseLost(settings, file, left) if left else None


def _has_contents(directory: Path) -> bool:
    return directory.is_dir() and any(one.name != "lost+found" for one in directory.iterdir())


async def require_no_database_left(settings: Settings, database: Database) -> None:
    """Raise DatabaseLeftBehind instead of going on without what the data directory's own database has."""
    left = await asyncio.to_thread(other_sqlite_file, settings)
    if left is not None and not await is_in_use(database):
        raise DatabaseLeftBehind(settings, left)


async def is_in_use(database: Database) -> bool:
    """Return whether a gateway has run on a migrated database."""
    async with database.read() as connection:
        return await get_account(connection, name=FIRST_ACCOUNT) is not None


def other_sqlite_file(settings: Settings) -> Path | None:
    """Return the SQLite file of the data directory if the settings name another database beside it."""
    left = settings.data_dir / "dovecote.db"
    is_other = settings.database_url is not None and _is_other_file(left, settings.database)
    return left if is_other else None


def _is_other_file(file: Path, url: str) -> bool:
    place = make_url(url)
    if place.get_backend_name() == "sqlite" and file.resolve() == Path(place.database or "").resolve():
        return False
    return file.is_file() and file.stat().st_size > 0


_RELEASED_LATER = ". If the other one's machine is gone, PostgreSQL releases its claim within half a minute"


class DatabaseInUse(Exception):
    """Another gateway has claimed the database; a later start succeeds when that gateway has ended."""

    def __init__(self, url: str, error: DatabaseClaimed, replicas: int) -> None:
        is_server = make_url(url).get_backend_name() != "sqlite"
        super().__init__(
            f"{_database_setting(url)}: {error}. With replicas = {replicas} they would end each other's "
            "background jobs. Stop the other gateway and start again, or set replicas (DOVECOTE_REPLICAS) to "
            f"the number of gateways in all of them{_RELEASED_LATER if is_server else ''}"
        )


class DatabaseRefused(Exception):
    """A gateway cannot run on the configured database as it or its pooler is set up."""

    def __init__(self, url: str, error: DatabaseUnsuitable) -> None:
        super().__init__(f"{_database_setting(url)}: {error}. {error.remedy}")


def _database_setting(url: str) -> str:
    place = make_url(url)
    return f"database_url = {place.host or place.database} (DOVECOTE_DATABASE_URL)"


@asynccontextmanager
async def claimed_database(settings: Settings) -> AsyncIterator[None]:
    """Claim the database for this process, or for replicas.

    Raises DatabaseInUse, DatabaseRefused, DatabaseFileUnusable and DependencyUnavailable.
    """
    _require_sqlite_file(settings)
    url, shared = settings.database, settings.replicas > 1
    owner = f"dovecote {socket.gethostname()} {os.getpid()}"[:63]
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(claim_database(url, shared=shared, owner=owner))
        except DatabaseClaimed as error:
            raise DatabaseInUse(url, error, settings.replicas) from error
        except DatabaseUnsuitable as error:
            raise DatabaseRefused(url, error) from error
        except (DBAPIError, OSError) as error:
            if settings.database_url is None:
                raise
            raise _configured_unusable(settings.database_url, error) from error
        yield


def _require_sqlite_file(settings: Settings) -> None:
    problem = sqlite_file_problem(settings.database) if settings.database_url else None
    if problem:
        raise DatabaseFileUnusable(settings.database, *problem)


def _configured_unusable(configured: SecretStr, error: Exception) -> Exception:
    """Return the error of a configured database that cannot be used: a file or a server."""
    url = configured.get_secret_value()
    if make_url(url).get_backend_name() == "sqlite":
        return DatabaseFileUnusable(url, str(error).splitlines()[0], "correct the path or its permissions")
    fallback = "a SQLite file is used"
    if remedy := refusal_remedy(error):
        return DependencyUnavailable("database_url", configured, error, fallback=fallback, remedy=remedy)
    return DependencyUnavailable("database_url", configured, error, fallback=fallback)


class ListenFailed(Exception):
    """The address to listen on is in use, or is not an address of this machine."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        super().__init__(
            f"cannot listen on host = {host} (--host, DOVECOTE_HOST), port = {port} (--port, DOVECOTE_PORT): "
            f"{why}. Stop the process that listens there, or choose another address"
        )


def _host(url: str) -> str:
    """Return where a URL points, without the credentials in it."""
    return urlsplit(url.strip()).netloc.rpartition("@")[2] or "***"


async def connect_nats(url: SecretStr, stack: AsyncExitStack) -> NatsConnection:
    """Connect to the configured NATS server; raises DependencyUnavailable."""
    try:
        return await stack.enter_async_context(connect(url.get_secret_value()))
    except DeliveryError as error:
        raise DependencyUnavailable("nats_url", url, error, fallback="the gateway starts its own") from error


async def migrate_database(url: str, configured: SecretStr | None) -> None:
    """Migrate the database; raises an error with setting and remedy when a configured one cannot be used."""
    try:
        await migrate_up(url)
    except (DBAPIError, DatabaseUnavailable, OSError) as error:
        if configured is None or is_damaged(error):
            raise
        raise _configured_unusable(configured, error) from error


SQLITE_PATH_BYTES = 512
"""Bytes from which on SQLite refuses the path of a file, also of those that it puts beside the database."""


def describe_damage(settings: Settings, error: BaseException) -> str | None:
    """Return what an operator does about a damaged SQLite file, or None if that is not the error."""
    if not is_damaged(error):
        return None
    file = make_url(settings.database).database
    why = next((str(one) for one in error_chain(error) if isinstance(one, sqlite3.Error)), "")
    return (
        f"the SQLite file {file} is damaged ({why}). Nothing was changed in it.\n"
        f"Way back: keep a copy of {file}, {file}-wal and {file}-shm. Then delete these three files, copy "
        f"dovecote.db from the directory that `dovecote backup` made to {file}, and start again; or start "
        "on that directory: `dovecote serve --data DIRECTORY`.\n"
        f"Without a backup: `sqlite3 {file} .recover | sqlite3 NEW` rescues the rows that can be read. Check "
        "the disk before you continue"
    )


def describe_exhaustion(settings: Settings, error: BaseException) -> str | None:
    """Return what an operator does about a disk or too few open files, or None if the error is another."""
    resource = exhausted_resource(error)
    if resource is None:
        return None
    is_file = isinstance(error, OSError)
    reason = (
        f"{EXHAUSTED[resource]} ({error})" if is_file else f"the database cannot write: {EXHAUSTED[resource]}"
    )
    if resource is not Resource.DISK or not (is_file or settings.database.startswith("sqlite")):
        return reason
    free = f"{_free_megabytes(settings.data_dir):.1f} MB free"
    others = [
        f"; {one}, a disk of its own, has {_free_megabytes(one):.1f} MB free"
        for one in separate_disks(settings.data_dir)
    ]
    named = f"data_dir = {settings.data_dir} (--data, DOVECOTE_DATA_DIR)"
    return f"{reason}. {named} has {free}{''.join(others)}"


def describe_inaccessible(settings: Settings, error: BaseException) -> str | None:
    """Return what an operator does about a file that this user may not use; None for other errors."""
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: permission denied. {_ownership_remedy([Path(error.filename)])}"
    url = make_url(settings.database)
    is_refused = any(_is_refusal(one) for one in error_chain(error))
    if not is_refused or url.get_backend_name() != "sqlite" or not url.database:
        return None
    file = Path(url.database)
    if (length := len(os.fsencode(f"{file}-wal"))) >= SQLITE_PATH_BYTES:
        return (
            f"SQLite cannot open {file}: with `-wal` the path has {length} bytes, and less than "
            f"{SQLITE_PATH_BYTES} are allowed. Choose a shorter data_dir (--data, DOVECOTE_DATA_DIR)"
        )
    files = [file.parent, file, *(file.with_name(f"{file.name}-{suffix}") for suffix in ("wal", "shm"))]
    refused = [one for one in files if one.exists() and not os.access(one, os.R_OK | os.W_OK)]
    if not refused:
        return None
    if os.statvfs(refused[0]).f_flag & os.ST_RDONLY:
        why = f"the file system of {refused[0]} is read-only. Mount it so that it can be written"
        return f"the SQLite file {file} cannot be opened: {why}, or correct data_dir or database_url"
    named = " and ".join(map(str, refused))
    return (
        f"the SQLite file cannot be opened: this user may not read and write {named}. "
        f"{_ownership_remedy(refused)}"
    )


def _is_refusal(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def _ownership_remedy(files: Sequence[Path]) -> str:
    listed = " ".join(map(str, files))
    with suppress(OSError, KeyError):  # a file that is gone, a user without a name
        if files[0].stat().st_uid != os.geteuid():
            return f"Run this as {files[0].owner()}, the owner. To give {listed} to another user: `chown`"
    return f"As its owner or as root: `chown {os.geteuid()} {listed}` and `chmod u+rwX {listed}`"


def _free_megabytes(directory: Path) -> float:
    try:
        return shutil.disk_usage(directory).free / 1_000_000
    except OSError:  # a mount whose server is gone
        return 0.0


class SecretKeyMismatch(Exception):
    """The encrypted columns of the database cannot be decrypted with the configured secret keys."""


async def open_checked_vault(settings: Settings, database: Database) -> Vault:
    """Return the vault that decrypts what the database stores; raises SecretKeyMismatch.

    A key is made for a new database only. For one in use it would decrypt nothing, and be in the ring from
    then on.
    """
    file = key_file(settings.data_dir)
    if not settings.secret_keys and not file.exists() and await is_in_use(database):
        raise SecretKeyMismatch(
            f"secret_keys (DOVECOTE_SECRET_KEYS) has no value here, and there is no {file}: the database has "
            "secrets that another key encrypted. Set the keys that the gateway had, or put the file back"
        )
    vault = open_vault(settings.data_dir, settings.secret_keys)
    await _check_secret_keys(database, vault)
    return vault


async def _check_secret_keys(database: Database, vault: Vault) -> None:
    try:
        await check_keys(database, vault)
    except DecryptionFailed as error:
        raise SecretKeyMismatch(
            f"secret_keys (DOVECOTE_SECRET_KEYS): {error}. Gateways on one database need the same keys: the "
            "setting, or the file secret.key of the data directory. During a rotation, an old key is needed "
            "until `dovecote secrets reencrypt` ends with exit code 0"
        ) from error
