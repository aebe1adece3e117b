"""deploy/systemd under a booted systemd: .ci/systemd sets DOVECOTE_LIVE_SYSTEMD; it skips without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployed_gateway import DeployedGateway, results, run, until

ROOT = Path(os.environ.get("DOVECOTE_LIVE_SYSTEMD", "/nonexistent"))
CONTAINER = "systemd-nspawn --quiet --register=no --keep-unit --bind=/dev/net/tun --boot"
SECONDS = 120

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif("DOVECOTE_LIVE_SYSTEMD" not in os.environ, reason="needs DOVECOTE_LIVE_SYSTEMD"),
]


def first_process(container: int) -> str:
    """Return the number of the systemd that a container's program has started."""
    return run("pgrep", "--parent", str(container)).split()[0]


@pytest.fixture
def enter() -> Iterator[list[str]]:
    """Boot the container, yield the words before a program in it, and stop it. It may write to /proc/sys."""
    writable = {**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes"}
    booted = subprocess.Popen(
        [*CONTAINER.split(), "--directory", str(ROOT)],
        env=writable, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    words = ["nsenter", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--target"]
    try:
        until(lambda: bool(first_process(booted.pid)), SECONDS)
        yield [*words, first_process(booted.pid)]
    finally:
        booted.terminate()
        booted.wait(SECONDS)


@pytest.fixture
def gateway(enter: list[str]) -> DeployedGateway:
    """Return the service once it is ready; its programs run as its user."""
    path = "PATH=/opt/dovecote/bin:/usr/bin:/bin"
    as_user = ["runuser", "-u", "dovecote", "--", "env", "-i", path]
    running = DeployedGateway(enter=[*enter, *as_user], data="/var/lib/dovecote")
    until(running.is_ready, SECONDS)
    return running


def test_a_job_goes_on_while_the_service_does_not(enter: list[str], gateway: DeployedGateway) -> None:
    """It outlives a restart, a stop and a kill -9 of the service, and its end is reported once."""

    def systemctl(*words: str) -> str:
        return run(*enter, "systemctl", *words).strip()

    def main_process() -> str:
        return systemctl("show", "--property", "MainPID", "--value", "dovecote")

    assert "hello from a sandbox" in gateway.chat("!echo hello from $(hostname | sed 's/^/a /')", "first")
    assert "Started job job_" in gateway.chat("!&for i in $(seq 60); do sleep 1; done; echo pigeon", "demo")
    systemctl("restart", "dovecote")
    until(gateway.is_ready, SECONDS)
    systemctl("stop", "dovecote")
    systemctl("start", "dovecote")
    until(gateway.is_ready, SECONDS)
    killed = main_process()
    run(*enter, "kill", "-KILL", killed)
    until(lambda: main_process() not in {"0", killed}, SECONDS)
    until(gateway.is_ready, SECONDS)
    until(lambda: gateway.has_ended("demo"), SECONDS)
    shown = gateway.snapshot("demo")
    assert [(job["state"], job["exit_code"]) for job in shown["jobs"]] == [("completed", 0)]
    (report,) = results(shown)
    assert "pigeon" in report
