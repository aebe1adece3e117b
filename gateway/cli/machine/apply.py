"""`dovecote apply`: make the records of the first account those of dovecote.toml."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.database import NOT_STARTED, require_current_schema, translate_database_errors
from gateway.cli.errors import CommandFailed
from gateway.cli.group import Config, Data, Json, load_settings, require_declared_models
from gateway.cli.output import print_json
from gateway.cli.printable import clean

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.records.declared import RecordChange

SIGNS = {"create": "+", "update": "~", "delete": "-", "release": "!"}
UNCHANGED = (
    "the records are those of the file: nothing to change; other settings, such as [agent], take effect when "
    "the gateway starts again"
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes; change nothing.")]


def apply(
    *, dry_run: DryRun = False, config: Config = None, data: Data = None, as_json: Json = False
) -> None:
    """Apply the agents, sandboxes, workspaces, channels, skills and schedules of dovecote.toml.

    Records that were made over HTTP are left alone. A running gateway uses the changes in its next turns,
    those of tools, MCP servers, hooks, sandboxes and workspaces from the next tool call on, and those of
    channels at once. `serve` applies the file when it starts, and reads all other
    settings then, such as those in `[agent]`. Like `serve`, this refuses agents whose
    model cannot be used, for example because its key is not in the environment.
    """
    from gateway.infra.preflight import SecretKeyMismatch
    from gateway.records.errors import InvalidRecord

    settings = load_settings(config, data_dir=data)
    require_declared_models(settings)
    with translate_database_errors(settings):
        try:
            changes = asyncio.run(_apply(settings, dry_run=dry_run))
        except InvalidRecord as error:
            raise CommandFailed(f"the file was not applied: {error}") from error
        except SecretKeyMismatch as error:
            raise CommandFailed(str(error)) from error
    if as_json:
        print_json([asdict(one) for one in changes])
        return
    for line in _lines(changes, dry_run=dry_run):
        typer.echo(clean(line))


class _DryRunEnded(Exception):
    """Rolls the transaction of a dry run back."""


def _end(*, dry_run: bool) -> None:
    if dry_run:
        raise _DryRunEnded


async def _apply(settings: Settings, *, dry_run: bool) -> Sequence[RecordChange]:
    from delivery.database.engine import Database
    from egress.policy import EgressPolicy
    from gateway.infra.preflight import open_checked_vault
    from gateway.infra.replica_signal import CHANNELS_CHANGED, send_from_command
    from gateway.records.records import Records
    from gateway.records.rules.sandbox_ceilings import FIRST_ACCOUNT
    from gateway.schedules.declared import apply_file
    from gateway.store.accounts.accounts import get_account

    await require_current_schema(settings)
    database = Database(settings.database)
    changes: Sequence[RecordChange] = ()
    try:
        vault = await open_checked_vault(settings, database)
        policy = EgressPolicy(allow=settings.egress_allow)
        records = Records(vault, policy, ceilings=settings.sandbox.ceilings)
        async with database.begin() as connection:
            account = await get_account(connection, name=FIRST_ACCOUNT)
            if account is None:
                raise CommandFailed(NOT_STARTED)
            changes = await apply_file(connection, records, account.id, settings)
            _end(dry_run=dry_run)
    except _DryRunEnded:
        return changes
    finally:
        await database.close()
    if any(one.kind == "channel" for one in changes):
        await send_from_command(settings, CHANNELS_CHANGED)
    return changes


def _lines(changes: Sequence[RecordChange], *, dry_run: bool) -> list[str]:
    if not changes:
        return [UNCHANGED]
    lines = [_line(one) for one in changes]
    return [*lines, f"{len(changes)} {'to change' if dry_run else 'changed'}"]


def _line(one: RecordChange) -> str:
    detail = one.reason or ", ".join(one.fields) or _ended(one.ended_jobs)
    kept = ", kept as a record that HTTP can change" if one.change == "release" else ""
    return f"{SIGNS[one.change]} {one.change} {one.kind} {one.name}{f' ({detail}{kept})' if detail else ''}"


def _ended(jobs: int) -> str:
    return f"ends {jobs} running {'job' if jobs == 1 else 'jobs'}" if jobs else ""
