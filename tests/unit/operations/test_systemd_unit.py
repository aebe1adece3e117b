"""deploy/systemd: systemd accepts the unit, and its variables are the gateway's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import Settings

SYSTEMD = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT = SYSTEMD / "dovecote.service"
HIDES_PROC = {
    "PrivateDevices",
    "ProtectControlGroups",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelTunables",
    "ProtectProc",
    "RestrictNamespaces",
}
"""Settings with which the kernel refuses sandboxes of the host provider their /proc or namespaces."""
SANDBOX_CALLS = {
    *("clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "sethostname"),
    *("prctl", "seccomp", "setrlimit", "prlimit64", "setresuid", "setresgid", "setgroups", "openat2"),
}
"""System calls of bubblewrap, of pasta, and of the gateway for its sandboxes."""


def assignments(file: Path) -> list[tuple[str, str]]:
    """Return the settings of a unit file in their order."""
    lines = (line.partition("=") for line in file.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    return [(name, value) for name, _, value in lines]


@pytest.mark.parametrize("with_drop_in", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, with_drop_in: bool) -> None:
    """`systemd-analyze verify` reports nothing, and the exposure is low."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "dovecote.service"
    unit.write_text(UNIT.read_text().replace("/opt/dovecote/bin/dovecote", "/bin/true"))
    most = 40
    if with_drop_in:
        folder = tmp_path / "dovecote.service.d"
        folder.mkdir()
        shutil.copy(SYSTEMD / "no-host-sandboxes.conf", folder)
        most = 22
    verified = subprocess.run(
        [program, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    about = [line for line in (verified.stdout + verified.stderr).splitlines() if "dovecote" in line]
    assert about == []
    rated = subprocess.run(
        [program, "security", "--offline=true", f"--threshold={most}", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout


def test_its_variables_are_settings(tmp_path: Path) -> None:
    """Each variable of the unit and of the environment file is one that `serve` reads."""
    set_there = dict(value.split("=", 1) for name, value in assignments(UNIT) if name == "Environment")
    assert set_there.pop("DOVECOTE_CONFIG") == "/etc/dovecote/dovecote.toml"
    settings = load(env=set_there, directory=tmp_path)
    assert settings.data_dir == Path("/var/lib/dovecote")
    named = re.findall(
        r"^# DOVECOTE_([A-Z_]+?)(?:__\w+)?=", (SYSTEMD / "dovecote.env").read_text(), re.MULTILINE
    )
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_it_leaves_sandboxes_their_namespaces() -> None:
    """What breaks the host provider is in the drop-in for the other providers, and only there."""
    assert {name for name, _ in assignments(UNIT)} & HIDES_PROC == set()
    drop_in = {name for name, _ in assignments(SYSTEMD / "no-host-sandboxes.conf")}
    assert drop_in >= HIDES_PROC


def test_it_permits_the_system_calls_of_sandboxes() -> None:
    """The unit permits what bubblewrap and pasta call; `sethostname` is in none of the two sets."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    permitted = permitted_calls(program, *dict(assignments(UNIT))["SystemCallFilter"].split())
    assert permitted >= SANDBOX_CALLS


def permitted_calls(program: str, *filters: str) -> set[str]:
    """Return the system calls of filters, which are sets with an `@`, or calls."""
    sets = [one for one in filters if one.startswith("@")]
    listed = subprocess.run(
        [program, "syscall-filter", "--no-pager", *sets],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    names = {line.strip() for line in listed.splitlines() if line.startswith("    ")}
    further = {one for one in names if one.startswith("@") and one not in sets}
    calls = {one for one in {*filters, *names} if one.isidentifier()}
    return calls | (permitted_calls(program, *further) if further else set())


def test_jobs_outlive_the_service() -> None:
    """Only the gateway is ended: the supervisors of jobs are in its control group."""
    assert dict(assignments(UNIT))["KillMode"] == "process"


def test_it_starts_again_but_not_with_wrong_settings() -> None:
    """Exit code 2 is final; the time to stop is longer than drain_timeout."""
    unit = dict(assignments(UNIT))
    assert unit["Restart"] == "always"
    assert unit["RestartPreventExitStatus"] == "2"
    assert int(unit["TimeoutStopSec"]) > Settings.model_fields["drain_timeout"].default
