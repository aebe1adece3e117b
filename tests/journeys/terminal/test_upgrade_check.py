"""`dovecote upgrade check`: the package beside databases of other versions, and a gateway that answers."""

from __future__ import annotations

import json
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from command_line import run_command_line
from fake_gateway import fake_gateway
from gateway.cli.doctor.upgrade import revision_titles, running_check
from gateway.migrations import newest
from gateway_process import GatewayProcess
from migrated import migrated_sqlite

INSTALLED = version("dovecote")
NO_PERSON = "http://127.0.0.1:9"
"""The discard port, where no gateway listens."""


def checked(data: Path, url: str = NO_PERSON) -> tuple[int, dict[str, dict[str, str]]]:
    """Return exit code and checks by subject."""
    result = run_command_line("upgrade", "check", "--data", str(data), "--url", url, "--json")
    return result.exit_code, {one["subject"]: one for one in json.loads(result.stdout)}


def at_revision(data: Path, revision: str) -> None:
    """Make the database of this version, and let it say that it is of another revision."""
    assert run_command_line("migrate", "up", "--data", str(data)).exit_code == 0
    set_revision(data, revision)


def set_revision(data: Path, revision: str) -> None:
    """Let the database say that it is of another revision."""
    with sqlite3.connect(data / "dovecote.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


def test_a_first_installation_has_nothing_to_fear(tmp_path: Path) -> None:
    """Without a database nothing is created, and the number of revisions is shown."""
    code, checks = checked(tmp_path / "none")
    assert code == 0
    assert checks["package"]["detail"] == f"dovecote {INSTALLED}"
    assert f"with {len(revision_titles())} revisions" in checks["database"]["detail"]
    assert checks["gateway"]["detail"] == f"none answers at {NO_PERSON}"
    assert not (tmp_path / "none").exists()


def test_a_database_of_this_version_needs_nothing(tmp_path: Path) -> None:
    """The newest revision is what this version needs."""
    at_revision(tmp_path, newest())
    code, checks = checked(tmp_path)
    assert (code, checks["database"]["state"]) == (0, "ok")
    assert newest() in checks["database"]["detail"]


def test_an_older_database_lists_what_migrate_would_do(tmp_path: Path) -> None:
    """Each missing revision is named in its order; the database is not changed."""
    at_revision(tmp_path, "0012")
    code, checks = checked(tmp_path)
    assert (code, checks["database"]["state"]) == (0, "warning")
    missing = [revision for revision in revision_titles() if revision > "0012"]
    listed = checks["database"]["detail"].partition("apply ")[2].split("; ")
    assert [line.split()[0] for line in listed] == missing
    assert "backup" in checks["database"]["remedy"]
    with sqlite3.connect(tmp_path / "dovecote.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0012",)]
    connection.close()


def test_a_database_of_a_newer_version_fails(tmp_path: Path) -> None:
    """A revision that this version does not have is exit code 1, before a gateway is stopped for it."""
    at_revision(tmp_path, "9999")
    code, checks = checked(tmp_path)
    assert (code, checks["database"]["state"]) == (1, "failed")
    assert "does not know" in checks["database"]["detail"]


@pytest.mark.parametrize("words", ["migrate up", "doctor --quick"])
def test_a_database_of_a_newer_version_is_explained(tmp_path: Path, words: str) -> None:
    """Commands that need the schema name both revisions and the remedy."""
    at_revision(tmp_path, "9999")
    result = run_command_line(*words.split(), "--data", str(tmp_path))
    assert result.exit_code == 1
    assert_newer_is_explained(result.output)
    assert "run `dovecote migrate up`" not in result.output


async def test_a_gateway_refuses_a_database_of_a_newer_version(tmp_path: Path) -> None:
    """It ends with 2, names the remedy and changes nothing."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    await migrated_sqlite(data / "dovecote.db")
    set_revision(data, "9999")
    process = GatewayProcess(data)
    await process.start(wait=False)
    assert await process.wait_for_exit(60) == 2
    assert_newer_is_explained("\n".join(process.log))
    with sqlite3.connect(data / "dovecote.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
    connection.close()


def assert_newer_is_explained(output: str) -> None:
    """Assert that both revisions and the remedy are in the output."""
    assert f"at 9999, which this version does not know: its newest is {newest()}" in output
    assert "install the version that migrated the database, or restore a backup" in output


@pytest.mark.parametrize(
    ("running", "state", "words"),
    [
        (INSTALLED, "ok", "the installed version"),
        ("0.0.9", "warning", "is installed"),
        ("99.1", "warning", "newer than the installed"),
    ],
)
def test_the_running_gateway_shows_its_version(tmp_path: Path, running: str, state: str, words: str) -> None:
    """An older or newer gateway is a warning with what to do; it gets no key."""
    (tmp_path / "key").write_text("secret")
    with fake_gateway() as gateway:
        text = f'# TYPE dovecote_build gauge\ndovecote_build{{version="{running}"}} 1.0\n'
        gateway.responses["GET", "/metrics"] = (200, text)
        code, checks = checked(tmp_path, gateway.url)
    assert (code, checks["gateway"]["state"]) == (0, state)
    assert words in checks["gateway"]["detail"]
    assert all("Authorization" not in headers for *_, headers in gateway.requests)


def test_something_else_that_answers_is_a_warning(tmp_path: Path) -> None:
    """A server without the metric is no gateway; a refusal is shown."""
    with fake_gateway() as gateway:
        gateway.responses["GET", "/metrics"] = (200, "up 1\n")
        assert "no gateway of Dovecote" in checked(tmp_path, gateway.url)[1]["gateway"]["detail"]
        gateway.responses.clear()
        assert "does not show its version" in checked(tmp_path, gateway.url)[1]["gateway"]["detail"]


def test_versions_are_compared_by_their_numbers() -> None:
    """0.10 is newer than 0.9."""
    assert "newer than the installed" in running_check("0.10.0", "0.9.1", "http://gateway").detail
    assert "is installed" in running_check("0.9.1", "0.10.0", "http://gateway").detail
