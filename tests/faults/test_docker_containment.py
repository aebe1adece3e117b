"""M12, M13: attacks from inside a container: all of them end with their run, and none gets out."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import docker_engine
from docker_rig import engine_rig
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network
from sandbox.port import Provider, Sandbox
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job, wait_for_output

CANARY = "canary-77aa01"
MARGIN = 2.0
"""Seconds after its time-out within which an attack is over."""

SLOW = 4
"""How many times slower a machine may be that runs other tests beside these."""


@pytest.fixture
def rig() -> Iterator[ProviderRig]:
    """Return the provider on the tests' engine, with small files, on a disk: files in memory would count."""
    with tempfile.TemporaryDirectory(prefix="dovecote-") as disk:
        yield engine_rig("attacked", Path(disk), max_file_bytes=64 << 20)


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the provider; its sandboxes are destroyed afterwards."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


@pytest.fixture
async def sandbox(provider: Provider, rig: ProviderRig) -> Sandbox:
    """Return a small sandbox without a network."""
    return await provider.create(rig.spec(memory_mb=128, pids=48))


@pytest.fixture
def sleep_seconds() -> str:
    """Return how long a command sleeps that must not be found afterwards."""
    return unique_sleep_seconds()


BOMBS = {
    "one that ends": "bomb() {{ bomb | bomb & }}; bomb",
    "one that goes on": "bomb() {{ bomb | bomb & }}; bomb; sleep {nap}",
    "one of sessions": "exec -a bomb-{nap} bash -c 'while :; do setsid -f sleep {nap}; done'",
    "one without a mark": "while :; do env -i setsid -f bash -c 'while :; do sleep {nap} & done'; done",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_fork_bomb_is_contained(sandbox: Sandbox, sleep_seconds: str, bomb: str) -> None:
    """Whatever it forks is dead when the run returns, soon after its time-out, and the sandbox goes on."""
    started = time.monotonic()
    await sandbox.run(ExecRequest(script=bomb.format(nap=sleep_seconds), timeout=1, output_limit=4096))
    assert time.monotonic() - started < 1 + MARGIN * SLOW
    assert processes_with(sleep_seconds) == []
    assert (await sandbox.run(ExecRequest(script="echo on"))).stdout == b"on\n"


async def test_daemons_die_with_their_run(sandbox: Sandbox, sleep_seconds: str) -> None:
    """Own sessions, no descriptors, no environment, a killed parent: nothing outlives the run."""
    for script in (
        f"setsid -f env -i sleep {sleep_seconds} <&- >&- 2>&-",
        f"(setsid bash -c 'setsid sleep {sleep_seconds} & exit' &)",
        f"setsid -f sleep {sleep_seconds}; kill -9 $PPID; sleep {sleep_seconds}",
        f"env -i setsid -f sleep {sleep_seconds}; kill -9 $PPID",
    ):
        await sandbox.run(ExecRequest(script=script, timeout=2))
        assert processes_with(sleep_seconds) == [], script


async def test_an_endless_output_is_cut(sandbox: Sandbox) -> None:
    """`yes` meets the limit and ends with its time-out."""
    started = time.monotonic()
    result = await sandbox.run(ExecRequest(script="yes & yes >&2", timeout=1, output_limit=65536))
    assert time.monotonic() - started < 1 + MARGIN * SLOW
    assert result.timed_out
    assert (len(result.stdout), len(result.stderr)) == (65536, 65536)


async def test_memory_and_files_are_bounded(sandbox: Sandbox, rig: ProviderRig) -> None:
    """Greedy programs are killed, giants are refused, and the sandbox goes on."""
    script = (
        "python3 -c 'print(len(bytearray(256 << 20)))'; truncate -s 50G giant; head -c 100M /dev/zero > full;"
        "head -c 300M /dev/zero > /tmp/full; stat -c %s full /tmp/full; rm -f full /tmp/full"
    )
    result = await sandbox.run(ExecRequest(script=script))
    sizes = [int(line) for line in result.stdout.split()]
    assert len(sizes) == 2
    assert all(size <= 64 << 20 for size in sizes)
    assert not (rig.workspace / "giant").exists() or (rig.workspace / "giant").stat().st_blocks == 0
    assert (await sandbox.run(ExecRequest(script="echo on"))).stdout == b"on\n"


CALLBACK_PROGRAM = (
    "import socket, os; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['DOVECOTE_CALLBACK']);"
    "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(20).decode().split()[1])"
)


async def test_nothing_is_reachable_but_the_callback(tmp_path: Path) -> None:
    """With `allow-all` and without a network the callback answers, and the machine does not."""
    engine = docker_engine.shared_engine()
    name = docker_engine.open_network(engine)
    host = json.loads(engine.call("GET", f"/networks/{name}"))["IPAM"]["Config"][0]["Gateway"]
    rig = engine_rig("networked", tmp_path, network=name)
    with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
        port = server.getsockname()[1]
        targets = (f"{host}/{port}", f"127.0.0.1/{port}", f"localhost/{port}")
        tries = "; ".join(
            f"timeout 5 bash -c ': </dev/tcp/{target}' 2>/dev/null && echo in" for target in targets
        )
        script = f'{tries}; python3 -c "{CALLBACK_PROGRAM}"'
        async with rig.open() as provider, rig.callback_server.listening():
            for network in (Network.ALLOW_ALL, Network.DENY_ALL):
                sandbox = await provider.create(rig.spec(label=f"{rig.label}:{network}", network=network))
                result = await sandbox.run(ExecRequest(script=script))
                await provider.destroy(sandbox.id)
                assert result.stdout == b"404\n"


async def test_the_gateways_secrets_do_not_get_in(
    sandbox: Sandbox, rig: ProviderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the gateway's environment nor its files nor the engine's socket show inside."""
    monkeypatch.setenv("DOVECOTE_SECRET", CANARY)
    (rig.directory / "state/secret").write_text(CANARY)
    script = (
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; set; find / -xdev -name '*.sock' 2>/dev/null;"
        f"cat {rig.directory}/state/secret; ls {rig.directory} {docker_engine.shared_engine().directory}"
    )
    result = await sandbox.run(ExecRequest(script=script, output_limit=1 << 18))
    assert CANARY.encode() not in result.stdout + result.stderr
    assert b"docker.sock" not in result.stdout.replace(script.encode(), b"")


async def test_there_is_nothing_to_climb_with(sandbox: Sandbox) -> None:
    """No capability, no new privileges, no device."""
    script = (
        "grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status | tr -d '\\t';"
        "mknod d b 8 0 2>/dev/null && echo device"
    )
    zero = "0000000000000000"
    reported = (await sandbox.run(ExecRequest(script=script))).stdout.decode().split()
    assert reported == [f"CapPrm:{zero}", f"CapEff:{zero}", f"CapBnd:{zero}", "NoNewPrivs:1"]


async def test_values_and_tokens_are_on_no_command_line(
    provider: Provider, rig: ProviderRig, sleep_seconds: str
) -> None:
    """Declared values and a job's token are in no argument list."""
    sandbox = await provider.create(rig.spec(env={"SECRET": CANARY}))
    await sandbox.spawn(
        BackgroundJob(id="job_1", token=TOKEN, script=f'echo "${{#SECRET}}"; sleep {sleep_seconds}')
    )
    await wait_for_output(sandbox, "job_1", str(len(CANARY)).encode())
    assert processes_with(sleep_seconds) != []
    assert processes_with(CANARY) == []
    assert processes_with(TOKEN) == []
    await provider.destroy(sandbox.id)
    assert processes_with(sleep_seconds) == []


async def test_killing_everybody_is_survived(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A run that kills every process it can reach ends; the jobs it killed are reported as killed."""
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=f"echo begun; sleep {sleep_seconds}"))
    await wait_for_output(sandbox, "job_1", b"begun")
    async with asyncio.timeout(20):
        result = await sandbox.run(ExecRequest(script="kill -9 -1; kill -9 $$", timeout=10))
    assert result.exit_code == 137
    report = await wait_for_job(sandbox, "job_1")
    assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 137)
    assert processes_with(sleep_seconds) == []
