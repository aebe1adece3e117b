"""What an upgrade would change: the package beside the database's schema and the running gateway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from gateway.cli.client import ApiError, open_gateway
from gateway.cli.connection import locate_gateway
from gateway.cli.database import database_status
from gateway.cli.doctor.check import CheckState, DoctorCheck, failed, passed
from gateway.cli.errors import GatewayUnreachable
from gateway.migrations import unknown_revision

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.migrations import Status

_RUNNING = re.compile(r'^dovecote_build\{version="([^"\\]{1,64})"\} 1', re.MULTILINE)
_RELEASE = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,5}")


async def check_upgrade(settings: Settings) -> list[DoctorCheck]:
    """Compare the package with the database and with the gateway that answers; changes nothing."""
    installed = version("dovecote")
    return [
        passed("package", f"dovecote {installed}"),
        schema_check(await database_status(settings), revision_titles()),
        await _running_check(settings, installed),
    ]


def revision_titles() -> dict[str, str]:
    """Return the title of each revision of this package, oldest first."""
    from alembic.script import ScriptDirectory

    from gateway.migrations import configuration

    scripts = ScriptDirectory.from_config(configuration()).walk_revisions()
    return {one.revision: str(one.doc).strip().splitlines()[0] for one in reversed(list(scripts))}


def schema_check(found: Status, titles: dict[str, str]) -> DoctorCheck:
    """Return whether `migrate up` has something to do, or cannot know the schema."""
    if found.up_to_date:
        return passed("database", f"at {found.current}, as this version needs; `migrate up` changes nothing")
    if unknown := unknown_revision(found.current):
        return failed("database", unknown.detail, unknown.REMEDY)
    missing = _after(found.current, titles)
    if found.current is None:
        return passed("database", f"no schema yet: `serve` makes it with {len(missing)} revisions")
    listed = "; ".join(f"{revision} {titles[revision]}" for revision in missing)
    return DoctorCheck(
        "database",
        CheckState.WARNING,
        f"at {found.current}, older than this version needs: `migrate up` and `serve` apply {listed}",
        "stop all gateways and make a backup first: there is no way back",
    )


def _after(current: str | None, titles: dict[str, str]) -> Sequence[str]:
    revisions = list(titles)
    return revisions if current is None else revisions[revisions.index(current) + 1 :]


async def _running_check(settings: Settings, installed: str) -> DoctorCheck:
    """Ask the gateway for its version; no key is sent."""
    url = locate_gateway(settings).url
    try:
        async with open_gateway(url, None) as gateway:
            answer = str(await gateway.get("metrics"))
    except GatewayUnreachable:
        return passed("gateway", f"none answers at {url}")
    except ApiError as error:
        return DoctorCheck("gateway", CheckState.WARNING, f"{url} does not show its version: {error}")
    found = _RUNNING.search(answer)
    if found is None:
        return DoctorCheck("gateway", CheckState.WARNING, f"{url} answers, but is no gateway of Dovecote")
    return running_check(found[1], installed, url)


def running_check(running: str, installed: str, url: str) -> DoctorCheck:
    """Return whether the running gateway is of the installed version."""
    if running == installed:
        return passed("gateway", f"{url} runs {running}, the installed version")
    if _release(running) > _release(installed):
        return DoctorCheck(
            "gateway",
            CheckState.WARNING,
            f"{url} runs {running}, which is newer than the installed {installed}",
            "run the command of the newer installation",
        )
    return DoctorCheck(
        "gateway",
        CheckState.WARNING,
        f"{url} runs {running}; {installed} is installed",
        "restart the gateway to use the installed version",
    )


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: 0.10.1 is newer than 0.9."""
    found = _RELEASE.match(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
