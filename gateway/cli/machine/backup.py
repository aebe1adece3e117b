"""`dovecote backup`: copy a running gateway's data directory, from which another gateway can start."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.errors import CommandFailed, UsageError
from gateway.cli.group import Config, Data, load_settings
from gateway.cli.machine.file_copy import copy_file
from gateway.cli.output import short
from gateway.cli.progress import progress

if TYPE_CHECKING:
    from gateway.config.settings import Settings

PART_SUFFIX = ".part"
"""Ends the name of a copy that is not complete, so that no one takes a part for a backup."""

EXCLUDED_NAMES = ("nats", "callbacks", "scratch", "logs", "lock", "first_key_id", "url", "dovecote.db*")
"""Names that are recreated at the start, the log, and what is not copied file by file (events, database)."""

SANDBOX_NAMES = ("workspaces", "sandboxes")
"""Directories in which commands of people make files, and take permissions away."""

_NOT_A_FILE = (errno.ENOENT, errno.ENXIO, errno.ELOOP)
_FORBIDDEN = (errno.EACCES, errno.ENAMETOOLONG)

_RECURSION_LIMIT = 20_000
"""Calls for a path of directories with the shortest names, of which the kernel reads 4096 bytes."""


def backup(
    target: Annotated[Path, typer.Argument(help="The directory to create for the copy.")],
    *,
    config: Config = None,
    data: Data = None,
) -> None:
    """Copy the data directory, also while the gateway runs; without the event log."""
    settings = load_settings(config, data_dir=data)
    if target.exists():
        raise UsageError(f"{target} already exists; name a directory that does not exist")
    if not settings.data_dir.is_dir():
        raise CommandFailed(f"{settings.data_dir} is no data directory")
    if target.resolve().is_relative_to(settings.data_dir.resolve()):
        raise UsageError("the copy cannot be inside the data directory")
    part = target.with_name(f"{target.name}{PART_SUFFIX}")
    try:
        part.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise UsageError(f"{part} is what an interrupted backup left: delete it, and repeat") from None
    except OSError as error:
        reason = f"cannot be created: {error.strerror}; choose a path that this user can write"
        raise CommandFailed(f"DIR = {target} {reason}") from error
    try:
        with progress("copying the database"):
            said = _copy_database(settings, part)
        with progress("copying files"):
            missing = _copy_files(settings.data_dir, part)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    typer.echo(f"{said}; files copied to {target}, which contains keys: protect it")
    if missing:
        typer.echo(
            f"{len(missing)} files are missing, such as {short(missing[0], 200)!a}: they disappeared during "
            "the copy, are no regular files, or a command in a sandbox forbade reading them or made them "
            "too deep",
            err=True,
        )


def _copy_database(settings: Settings, target: Path) -> str:
    """Copy a consistent snapshot of a SQLite file; database servers have their own tools."""
    from sqlalchemy.engine import make_url

    from delivery.database.sqlite import find_damage
    from gateway.infra.preflight import describe_inaccessible

    url = make_url(settings.database)
    if url.get_backend_name() != "sqlite":
        return "the database is on a server: copy it with pg_dump"
    source = Path(url.database or "")
    if not source.is_file():
        raise CommandFailed(f"there is no database at {source}")
    copy = target / "dovecote.db"
    copy.touch(mode=0o600)
    try:
        _copy_snapshot(source.resolve(), copy)
    except sqlite3.Error as error:
        why = describe_inaccessible(settings, error) or f"the database cannot be copied to {copy}: {error}"
        raise CommandFailed(why) from error
    if damage := find_damage(str(copy), in_use=False):
        raise CommandFailed(
            f"the database {source} is damaged ({damage}), so nothing was copied. Keep the earlier "
            f"backups, and restore one; `sqlite3 {source} .recover` rescues the rows that can be read"
        )
    return f"database copied ({copy.stat().st_size // 1024} KiB)"


def _copy_snapshot(source: Path, copy: Path) -> None:
    """Copy a SQLite file that a gateway may be writing; raises sqlite3.Error, CommandFailed.

    SQLite makes files beside a database to read it, which a read-only file system refuses. Where there is
    no write-ahead log, no gateway has the database open, and it can be read without them.
    """
    log = source.with_name(f"{source.name}-wal")
    is_closed = bool(os.statvfs(source).f_flag & os.ST_RDONLY) and not log.exists()
    mode = "immutable=1" if is_closed else "mode=ro"
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?{mode}", uri=True)) as original,
        closing(sqlite3.connect(copy)) as made,
    ):
        original.backup(made)
    if is_closed and log.exists():
        raise CommandFailed("a gateway was started during the copy, which may be damaged: run this again")


def _excluded(source: Path) -> Callable[[str, list[str]], set[str]]:
    """Exclude names at the top of the data directory only; a workspace may have files of these names."""
    ours = shutil.ignore_patterns(*EXCLUDED_NAMES)

    def ignore(directory: str, names: list[str]) -> set[str]:
        return ours(directory, names) if Path(directory) == source else set()

    return ignore


def _copy_files(source: Path, target: Path) -> list[str]:
    """Copy the other files, after the database, so that files of its rows exist.

    Returns those that are missing. Raises CommandFailed if a file that exists cannot be copied.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
    try:
        shutil.copytree(
            source,
            target,
            symlinks=True,
            dirs_exist_ok=True,
            ignore=_excluded(source),
            copy_function=copy_file,
        )
    except shutil.Error as errors:
        failures = errors.args[0]
    except OSError as error:
        failures = [(str(source), str(target), str(error))]
    else:
        return []
    for name, _copy, why in failures:
        if why.startswith("[Errno") and not why.startswith(_accepted_errors(Path(name), source)):
            raise CommandFailed(f"{name} cannot be copied: {why}; the incomplete copy was removed")
    return [name for name, _copy, _why in failures]


def _accepted_errors(path: Path, source: Path) -> tuple[str, ...]:
    """Return how the reasons begin for which a backup does without a file."""
    is_made_in_sandbox = path.is_relative_to(source) and path.relative_to(source).parts[:1] in {
        (name,) for name in SANDBOX_NAMES
    }
    accepted = (*_NOT_A_FILE, *_FORBIDDEN) if is_made_in_sandbox else _NOT_A_FILE
    return tuple(f"[Errno {number}]" for number in accepted)
