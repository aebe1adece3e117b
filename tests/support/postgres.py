"""A throw-away PostgreSQL cluster on a unix socket, run as an unprivileged user: one for a whole test run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

import session

OPTIONS = (
    "-c listen_addresses='' -c max_connections=500 -c fsync=off -c full_page_writes=off -c autovacuum=off"
)
"""No test asks what a power cut leaves; gateways of several workers keep many connections.

With hundreds of databases, autovacuum would start a process several times a second.
"""


class PostgresUnavailable(RuntimeError):
    """There is no PostgreSQL server program on this machine, or no user to run it as."""


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise PostgresUnavailable("no initdb under /usr/lib/postgresql or on PATH")
    return Path(on_path).parent


def _user() -> pwd.struct_passwd | None:
    """Return the user to run the server as: the current one when it is unprivileged."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailable("PostgreSQL does not run as root, and there is no user postgres or nobody")


class PostgresCluster:
    """A running server; `fresh()` makes an empty database."""

    def __init__(self, programs: Path, folder: Path, user: pwd.struct_passwd | None) -> None:
        self._programs = programs
        self._folder = folder
        self._user = user

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the server's user."""
        user = self._user
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self._folder)},
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            timeout=60,
        )

    def start(self) -> None:
        """Make the cluster and start it on a socket in its own folder."""
        self.run("initdb", "-D", str(self._folder / "cluster"), "-A", "trust", "-U", "dovecote", "-E", "UTF8")
        self.resume()

    def resume(self) -> None:
        """Start the server, again if need be, on the socket it had."""
        options = f"{OPTIONS} -c unix_socket_directories='{self._folder}'"
        log = str(self._folder / "log")
        self.run("pg_ctl", "-D", str(self._folder / "cluster"), "-l", log, "-o", options, "-w", "start")

    def kill(self) -> None:
        """Stop the server cleanly, and cut its clients off."""
        self.run("pg_ctl", "-D", str(self._folder / "cluster"), "-m", "fast", "-w", "stop")

    def stop(self) -> None:
        """End the server at once."""
        self.run("pg_ctl", "-D", str(self._folder / "cluster"), "-m", "immediate", "-w", "stop")

    def keep_copy(self) -> None:
        """Restart the server, and keep a copy of its files as they are between."""
        self.kill()
        self.run("/bin/cp", "-a", str(self._folder / "cluster"), str(self._folder / "copy"))
        self.resume()

    def go_back(self) -> None:
        """Restart the server with the files of the copy, as a fail-over to a standby that was behind."""
        self.kill()
        for source, target in (("cluster", "lost"), ("copy", "cluster")):
            (self._folder / source).rename(self._folder / target)
        self.resume()

    def create_database(self, *, template: str = "template1", name: str = "") -> str:
        """Return the URL of a new database: empty, or a copy of a template without connections."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        where = f"host={self._folder} user=dovecote dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            # Without fsync, a copy of the files costs half of what the log of every block does.
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY".encode())
        return f"postgresql+psycopg://dovecote@/{name}?host={self._folder}"

    def create_user(self, url: str, options: str = "") -> str:
        """Return the URL of a database for a new user, which has no rights but to connect."""
        user = f"user_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(
            f"host={self._folder} user=dovecote dbname={_name(url)}", autocommit=True
        ) as made:
            made.execute(f"CREATE ROLE {user} LOGIN {options}".encode())
        return url.replace("//dovecote@", f"//{user}@")

    def log_text(self) -> str:
        """Return what the server logged, such as deadlocks and unique violations."""
        return (self._folder / "log").read_text()

    def dump_database(self, url: str, form: str = "plain") -> Path:
        """Return the file with what `pg_dump` takes of a database, in a form such as `plain`."""
        dump = self._folder / f"dump-{uuid.uuid4().hex[:12]}"
        at = ("-h", str(self._folder), "-U", "dovecote")
        self.run("pg_dump", *at, "--format", form, "--file", str(dump), _name(url))
        return dump

    def copy_database(self, url: str) -> str:
        """Return the URL of a new database with what `pg_dump` took of another one."""
        dump, fresh = str(self.dump_database(url, "custom")), self.create_database()
        at = ("-h", str(self._folder), "-U", "dovecote")
        self.run("pg_restore", *at, "--exit-on-error", "--dbname", _name(fresh), dump)
        return fresh


def _name(url: str) -> str:
    """Return the name of the database at a URL."""
    return urlsplit(url).path.removeprefix("/")


def _owned(folder: Path) -> PostgresCluster:
    """Return a cluster to be created below a folder, which is given to the user that runs it."""
    programs, user = _programs(), _user()
    folder.mkdir(exist_ok=True)
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return PostgresCluster(programs, folder, user)


@contextmanager
def own_cluster() -> Iterator[PostgresCluster]:
    """Run a cluster for one test, which may halt it; raises NoServer where there is none to run."""
    folder = Path(tempfile.mkdtemp(prefix="dovecote-postgres-"))
    try:
        running = _owned(folder)
        running.start()
        yield running
        running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    """Return the cluster of the test run, started when first asked for; without a run, one of our own."""
    if not session.running():
        with own_cluster() as own:
            yield own
        return
    with session.making("postgres") as place:
        running = _owned(session.directory() / "postgres")
        if place is not None:
            running.start()
    yield running


def end_shared() -> None:
    """End the cluster of the test run, if there is one."""
    folder = session.directory() / "postgres"
    if (folder / "cluster" / "postmaster.pid").exists():
        _owned(folder).stop()
