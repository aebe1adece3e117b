"""Commands on the settings: config, version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.errors import print_error
from gateway.cli.group import (
    Config,
    Data,
    check_settings,
    group,
    load_settings,
    local,
    require_no_problems,
)
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from gateway.config.settings import Settings

config = group("Show and check the settings.")


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
    checked = check_settings(config, data_dir=data)
    if checked.settings is not None:
        _print_warnings(checked.settings)
    require_no_problems(checked)
    typer.echo("the settings are valid")


def _print_warnings(settings: Settings) -> None:
    from gateway.infra.preflight import other_sqlite_file

    for warning in settings.warnings():
        print_error(f"warning: {warning}")
    if (left := other_sqlite_file(settings)) is not None:
        print_error(
            f"warning: {left} is not the database of database_url. A gateway refuses to start if it has not "
            "run there before: copy the file with `dovecote migrate copy`, or move it away"
        )


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
