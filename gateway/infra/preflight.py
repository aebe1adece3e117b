"""Places that settings name: reached at the start, or told of by the name of the setting."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from pydantic import SecretStr
from sqlalchemy.exc import DBAPIError

from delivery.broker.connection import Link, connect
from delivery.database.engine import Database, Unavailable
from delivery.errors import DeliveryError
from gateway.accounts.vault import Unreadable, Vault, context
from gateway.migrations import migrate_up
from gateway.store.accounts import encrypted_columns


class Unanswered(Exception):
    """A setting names a server that cannot be used: which setting, which place, why, and what to do."""

    def __init__(self, setting: str, url: SecretStr, error: BaseException, *, without: str) -> None:
        places = ", ".join(_place(one) for one in url.get_secret_value().split(","))
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        super().__init__(
            f"{setting} = {places} (DOVECOTE_{setting.upper()}): {why}. "
            f"Start that server or correct the URL; without it {without}"
        )


class CannotListen(Exception):
    """The address to listen on is taken, or is none of this machine's."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        super().__init__(
            f"cannot listen on host = {host} (--host, DOVECOTE_HOST), port = {port} (--port, DOVECOTE_PORT): "
            f"{why}. Stop what listens there, or take another"
        )


def _place(url: str) -> str:
    """Return where a URL points, without the credentials in it."""
    return urlsplit(url.strip()).netloc.rpartition("@")[2] or "***"


async def reach_broker(url: SecretStr, stack: AsyncExitStack) -> Link:
    """Connect to the NATS server that is named; raises Unanswered."""
    try:
        return await stack.enter_async_context(connect(url.get_secret_value()))
    except DeliveryError as error:
        raise Unanswered("nats_url", url, error, without="the gateway starts its own") from error


async def migrate_named(url: str, named: SecretStr | None) -> None:
    """Bring the database up to date; raises Unanswered when it was named and cannot be used."""
    try:
        await migrate_up(url)
    except (DBAPIError, Unavailable, OSError) as error:
        if named is None:
            raise
        raise Unanswered("database_url", named, error, without="a SQLite file is used") from error


class WrongKeys(Exception):
    """What the database holds sealed cannot be opened with the secret keys we have."""


async def try_keys(database: Database, vault: Vault) -> None:
    """Raise WrongKeys when the database's first gateway sealed its mark with a key that we lack."""
    place = context("marks", "vault", "sealed")
    async with database.begin() as connection:
        standing = await encrypted_columns.mark(connection, "vault", vault.seal(place, "dovecote"))
    try:
        vault.reveal(place, standing)
    except Unreadable as error:
        raise WrongKeys(
            f"secret_keys (DOVECOTE_SECRET_KEYS): {error}. Gateways on one database need the same keys: the "
            "setting, or the file secret.key of the data directory"
        ) from error
