"""`dovecote doctor` and `dovecote upgrade check`: check the installation, and what an upgrade changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.database import translate_database_errors
from gateway.cli.errors import ExitCode
from gateway.cli.group import Config, Data, Json, Url, check_settings, group, load_settings, local
from gateway.cli.output import print_json
from gateway.cli.printable import clean
from gateway.cli.progress import progress

if TYPE_CHECKING:
    from gateway.cli.doctor.check import DoctorCheck

upgrade = group("Prepare an upgrade.")

MARKS = {"ok": "✓", "warning": "!", "failed": "✗"}


def doctor(
    *,
    simulate: Annotated[
        str | None, typer.Option(help="Test this platform's adapter end to end against its simulator.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only check; do not run the crash-recovery test.")
    ] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Check the installation and run a crash-recovery test."""
    if simulate:
        from gateway.cli.doctor.simulation import simulate_platform

        with progress("talking to the simulated platform"):
            found = asyncio.run(simulate_platform(simulate))
    else:
        with progress("checking the installation"):
            found = _run_checks(config, data)
        if not quick and not any(check.state == "failed" for check in found):
            from gateway.cli.doctor.simulation import check_recovery

            with progress("killing a gateway during a turn"):
                found += asyncio.run(check_recovery())
    _print(found, as_json=as_json)
    if any(check.state == "failed" for check in found):
        raise typer.Exit(ExitCode.FAILED)


@local(upgrade, "check")
def check(*, url: Url = None, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Compare the installed version with the database and the running gateway; exit code 1 if it cannot work.

    Changes nothing. It shows which revisions `migrate up` would apply.
    """
    from gateway.cli.doctor.upgrade import check_upgrade

    settings = load_settings(config, url=url, data_dir=data)
    with translate_database_errors(settings):
        found = asyncio.run(check_upgrade(settings))
    _print(found, as_json=as_json)
    if any(one.state == "failed" for one in found):
        raise typer.Exit(ExitCode.FAILED)


def _run_checks(config: Path | None, data: Path | None) -> list[DoctorCheck]:
    from gateway.cli.doctor.check import CheckState, DoctorCheck
    from gateway.cli.doctor.local_checks import check_all

    checked = check_settings(config, data_dir=data, with_models=False)  # these are a check of their own
    found = [DoctorCheck("settings", CheckState.FAILED, problem) for problem in checked.problems]
    if checked.settings is None:
        return found
    return [*(found or [DoctorCheck("settings", CheckState.OK, "no problems")]), *check_all(checked.settings)]


def _print(checks: Iterable[DoctorCheck], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(check) for check in checks])
        return
    for check in checks:
        remedy = f" → {check.remedy}" if check.remedy else ""
        line = " ".join(f"{MARKS[check.state]} {check.subject}: {check.detail}{remedy}".split())
        typer.echo(clean(line))
