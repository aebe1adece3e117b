"""compose.yaml on a real engine: needs DOVECOTE_LIVE_COMPOSE=1, as .ci/compose sets it, and else skips."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployed_gateway import DeployedGateway, results, run, until

ROOT = Path(__file__).parents[2]
SECRETS = ("DOVECOTE_SECRET_KEYS", "NATS_TOKEN", "POSTGRES_PASSWORD")
USER = "10001"
SECONDS = 120

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        os.environ.get("DOVECOTE_LIVE_COMPOSE") != "1", reason="needs DOVECOTE_LIVE_COMPOSE=1"
    ),
]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[list[str]]:
    """Bring everything up as the file says, yield the words before a command of Compose, and remove it."""
    settings = tmp_path / "env"
    settings.write_text("".join(f"{name}={secrets.token_hex(32)}\n" for name in SECRETS))
    name = f"dovecote-test-{secrets.token_hex(4)}"
    compose = ["docker", "compose", "--env-file", str(settings), "--project-name", name]
    compose += ["--project-directory", str(ROOT), "--file", str(ROOT / "compose.yaml")]
    try:
        run(*compose, "up", "--build", "--detach", "--wait")
        yield compose
    finally:
        run(*compose, "down", "--volumes", "--rmi", "local")


@pytest.fixture
def gateway(project: list[str]) -> DeployedGateway:
    """Return the gateway of the project."""
    return DeployedGateway(enter=[*project, "exec", "-T", "gateway"], data="/data")


def container(project: list[str]) -> dict[str, Any]:
    """Return what the engine says about the gateway's container."""
    number = run(*project, "ps", "--quiet", "gateway").strip()
    details: dict[str, Any] = json.loads(run("docker", "inspect", number))[0]
    return details


def test_a_job_ends_once_through_a_kill(project: list[str], gateway: DeployedGateway) -> None:
    """The image has no rights; kill -9 ends its container, which returns and reports the job's end once."""
    before = container(project)
    assert before["State"]["Health"]["Status"] == "healthy"
    assert (before["HostConfig"]["ReadonlyRootfs"], before["HostConfig"]["CapDrop"]) == (True, ["ALL"])
    assert gateway.run("id", "-u").strip() == USER
    assert gateway.run("sh", "-c", "touch /file 2>&1 || true").endswith("Read-only file system\n")
    assert "CapEff:\t0000000000000000" in gateway.run("cat", "/proc/self/status")

    assert "hello from a sandbox" in gateway.chat("!echo hello from a sandbox", "first")
    gateway.chat("!&sleep 2; echo pigeon", "short")
    until(lambda: gateway.has_ended("short"), SECONDS)
    assert "pigeon" in results(gateway.snapshot("short"))[0]
    assert "Started job job_" in gateway.chat("!&sleep 30; echo pigeon", "demo")

    os.kill(before["State"]["Pid"], signal.SIGKILL)
    until(lambda: container(project)["State"]["StartedAt"] != before["State"]["StartedAt"], SECONDS)
    until(gateway.is_ready, SECONDS)
    until(lambda: gateway.has_ended("demo"), SECONDS)
    until(lambda: container(project)["State"]["Health"]["Status"] == "healthy", SECONDS)
    assert "hello again" in gateway.chat("!echo hello again", "demo")

    shown = gateway.snapshot("demo")
    assert [job["reason"] for job in shown["jobs"]] == ["sandbox_recreated"]
    assert len(results(shown)) == 1, shown["messages"]
    assert len(results(gateway.snapshot("short"))) == 1
