"""M12: each hostile attempt of one table, from inside a sandbox of each provider on this machine's kernel."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import escape_attempts
import kubernetes_rig
from docker_rig import engine_rig
from sandbox.host.isolation import network
from sandbox.host.isolation.seccomp import DENIED
from sandbox.model import ExecRequest
from sandbox.port import CALLBACK_SOCKET
from sandbox.testing.processes import unique_sleep_seconds
from sandbox.testing.rig import ProviderRig
from sandbox.testing.waiting import until
from sandbox_rigs import VARIANTS

MARK = "DOVECOTE_ESCAPE_CANARY_5d1e"
PROGRAM = Path(escape_attempts.__file__).read_bytes()
LEAST = 20
RIGS: dict[str, Callable[[Path], ProviderRig]] = {
    "host-control_groups": VARIANTS["host"]["control_groups"],
    "host-rlimits": VARIANTS["host"]["rlimits"],
    "docker": lambda directory: engine_rig("attacked", directory),
    "podman": lambda directory: engine_rig("attacked", directory, kind="podman"),
}
RIGS |= {f"kubernetes-{name}": make for name, make in kubernetes_rig.attacked_variants().items()}
LEFT_TO_THE_RUNTIME = {"kubernetes-runtime_filter": {"open a socket to the hypervisor", "set up io_uring"}}
"""What a pod's runtime refuses or not, by its version, where the node has no profile of ours."""
NOT_FROM_A_SANDBOX = (
    "read the environment of every process",
    "find a process of the machine",
    "signal a process of the machine",
    "read a file of the data directory",
    "list the data directory",
    "follow a link out of the workspace",
    "connect to the gateway's port",
    "connect to the port of NATS",
    "connect to an abstract socket of the machine",
    "connect to the callback socket of another sandbox",
)
"""What goes through without a sandbox on any machine, which shows that the attempts find what there is."""


@asynccontextmanager
async def machine(rig: ProviderRig) -> AsyncIterator[dict[str, Any]]:
    """Run what a sandbox must not reach, and yield the facts that its attempts are given."""
    secret = rig.directory / "state" / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(MARK)
    abstract = f"{MARK}-{unique_sleep_seconds()}"
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=64)) for _ in range(2)]
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind("\0" + abstract)
        listener.listen()
        program = f"import time; time.sleep({unique_sleep_seconds()})"
        other = subprocess.Popen([sys.executable, "-c", program, MARK], env={"SECRET": MARK})  # noqa: ASYNC220 - it sleeps
        stack.callback(other.wait)
        stack.callback(other.kill)
        rig.callback_server.open("another")
        async with rig.callback_server.listening() as callbacks:
            received = callbacks.directory("another") / CALLBACK_SOCKET
            await until(lambda: asyncio.to_thread(received.exists))
            number = 0 if os.uname().machine == "x86_64" else 1
            yield {
                "mark": MARK,
                "pid": other.pid,
                "secret": str(secret),
                "ports": [server.getsockname()[1] for server in servers],
                "addresses": ["127.0.0.1", *network.own_addresses()],
                "abstract": abstract,
                "engines": engine_sockets(rig),
                "callback": str(received),
                "calls": {name: numbers[number] for name, numbers in DENIED.items()},
            }


def engine_sockets(rig: ProviderRig) -> list[str]:
    """Return where engines listen, the rig's own first."""
    usual = ["/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"]
    host = str(getattr(rig.settings, "host", ""))
    return [host.removeprefix("unix://"), *usual] if host else usual


@pytest.mark.parametrize("name", RIGS)
async def test_no_attempt_gets_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused or finds nothing; all of them run, in one sandbox without a network."""
    monkeypatch.setenv("DOVECOTE_SECRET", MARK)
    rig = RIGS[name](tmp_path)
    async with rig.open() as provider, machine(rig) as facts:
        sandbox = await provider.create(rig.spec())
        try:
            await sandbox.write("facts.json", json.dumps(facts).encode())
            result = await sandbox.run(
                ExecRequest(script="python3 - facts.json", stdin=PROGRAM, timeout=90, output_limit=1 << 18)
            )
        finally:
            await provider.destroy(sandbox.id)
    assert result.exit_code == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert list(outcomes) == list(escape_attempts.ATTEMPTS)
    held = {one: how for one, how in outcomes.items() if how[0] in {"refused", "nothing"}}
    left = LEFT_TO_THE_RUNTIME.get(name, set())
    assert {one: how for one, how in outcomes.items() if one not in {*held, *left}} == {}
    assert len(held) >= LEAST


async def test_attempts_find_what_there_is(tmp_path: Path) -> None:
    """Without a sandbox the harmless ones obtain what they look for."""
    rig = VARIANTS["host"]["plain"](tmp_path)
    async with machine(rig) as facts:
        (tmp_path / "facts.json").write_text(json.dumps({**facts, "only": NOT_FROM_A_SANDBOX}))
        words, pipe = (sys.executable, "-", "facts.json"), subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, stdin=pipe, stdout=pipe)
        output, _ = await process.communicate(PROGRAM)
    outcomes = json.loads(output)
    assert {one: how[0] for one, how in outcomes.items()} == dict.fromkeys(NOT_FROM_A_SANDBOX, "obtained")
