"""`dovecote doctor`: is everything in place, and does a message really come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.errors import Exit
from gateway.cli.group import Config, Data, Json, settings_of
from gateway.cli.output import clean, print_json

if TYPE_CHECKING:
    from gateway.cli.doctor.check import Check

MARKS = {"ok": "✓", "warning": "!", "failed": "✗"}


def doctor(
    *,
    simulate: Annotated[
        str | None, typer.Option(help="Try this platform's adapter against its simulator, end to end.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only look: run no gateway to be killed.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Look at settings, machine and installation, and show that a killed gateway's answer still comes."""
    if simulate:
        from gateway.cli.doctor.simulation import simulate_platform

        found = asyncio.run(simulate_platform(simulate))
    else:
        found = _look(config, data)
        if not quick and not any(check.state == "failed" for check in found):
            from gateway.cli.doctor.simulation import prove_recovery

            found += asyncio.run(prove_recovery())
    _print(found, as_json=as_json)
    if any(check.state == "failed" for check in found):
        raise typer.Exit(Exit.FAILED)


def _look(config: Path | None, data: Path | None) -> list[Check]:
    from gateway.cli.doctor.check import Check, State
    from gateway.cli.doctor.local_checks import check_all
    from gateway.config.settings import Misconfigured

    try:
        settings = settings_of(config, data_dir=data)
    except Misconfigured as error:
        return [Check("settings", State.FAILED, str(problem)) for problem in error.problems]
    return [Check("settings", State.OK, "no problems"), *check_all(settings)]


def _print(found: Iterable[Check], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(check) for check in found])
        return
    for check in found:
        remedy = f" → {check.remedy}" if check.remedy else ""
        line = " ".join(f"{MARKS[check.state]} {check.subject}: {check.detail}{remedy}".split())
        typer.echo(clean(line))
