"""The URL of the database: its schemes, and how a SQLite file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gateway.config.setting_types import SecretValue

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
}
"""Supported database URL schemes and their drivers."""


def sqlite_url(file: Path) -> str:
    """Return the database URL of a SQLite file, whose path may contain any character."""
    return f"{DRIVERS['sqlite']}:///{str(file).replace('%', '%25').replace('?', '%3F')}"


def _check_database_url(value: SecretStr) -> SecretStr:
    scheme, colon, rest = value.get_secret_value().strip().partition("://")
    driver = DRIVERS.get(scheme)
    if not colon or driver is None:
        raise ValueError("must be postgresql://user:password@host/database or sqlite:////absolute/path")
    if driver.startswith("sqlite") and len(rest) < 2:  # noqa: PLR2004 - a slash and at least one letter
        raise ValueError("names no file: write sqlite:////absolute/path")
    if not _is_readable(f"{driver}://{rest}"):
        raise ValueError(
            "cannot be read: the port must be a number, and several servers are written as "
            "postgresql://user:password@/database?host=A:5432&host=B:5432&target_session_attrs=read-write"
        )
    return SecretStr(f"{driver}://{rest}")


def _is_readable(url: str) -> bool:
    from sqlalchemy.engine import make_url  # loading it takes longer than most commands
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(url)
    except (ValueError, ArgumentError):
        return False
    return True


DatabaseUrl = Annotated[SecretValue, AfterValidator(_check_database_url)]
