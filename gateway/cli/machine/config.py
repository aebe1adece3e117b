"""Commands on the settings and the database: config, migrate, version."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.database import database_status, translate_database_errors
from gateway.cli.errors import CommandFailed, ExitCode, print_error
from gateway.cli.group import (
    Config,
    Data,
    Json,
    group,
    load_settings,
    local,
    require_models,
    require_valid_tables,
)
from gateway.cli.output import print_json
from gateway.cli.progress import progress

config = group("Show and check the settings.")
migrate = group("Migrate the database's schema.")


@local(config, "show")
def show_config(*, config: Config = None, data: Data = None) -> None:
    """Print the settings in force as JSON, secrets masked."""
    from gateway.config.settings import masked

    print_json(masked(load_settings(config, data_dir=data)))


@local(config, "check")
def check_config(*, config: Config = None, data: Data = None) -> None:
    """Report every problem of the settings, without starting anything.

    Whether a table refers to a record that exists depends on the database: see `dovecote apply --dry-run`.
    """
    settings = load_settings(config, data_dir=data)
    for warning in settings.warnings():
        print_error(f"warning: {warning}")
    require_models(settings)
    require_valid_tables(settings)
    typer.echo("the settings are valid")


@local(config, "schema")
def print_schema() -> None:
    """Print the JSON schema of dovecote.toml."""
    from gateway.config.settings import Settings

    print_json(Settings.model_json_schema())


def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("dovecote"))


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - a callback of the option
    if wanted:
        version()
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
]


@local(migrate, "up")
def migrate_up(*, config: Config = None, data: Data = None) -> None:
    """Migrate the database to this version's schema (`serve` does so too)."""
    from gateway.infra.preflight import sqlite_file_problem
    from gateway.migrations import migrate_up as bring_up

    settings = load_settings(config, data_dir=data)
    with translate_database_errors(), progress("migrating"):
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if problem := sqlite_file_problem(settings.database):
            raise CommandFailed(": ".join(problem))
        asyncio.run(bring_up(settings.database))
    typer.echo("the database is up to date")


@local(migrate, "status")
def migrate_status(*, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Show the database's revision; exit code 1 when migrations are missing."""
    with translate_database_errors():
        found = asyncio.run(database_status(load_settings(config, data_dir=data)))
    if as_json:
        print_json({**asdict(found), "up_to_date": found.up_to_date})
    else:
        typer.echo(f"at {found.current or 'no revision'}; this version needs {found.head}")
    if not found.up_to_date:
        raise typer.Exit(ExitCode.FAILED)
