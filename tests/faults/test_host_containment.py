"""M10, M12, M13, M18: what must not get out of a host sandbox: secrets in; processes, files, packets out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandbox.errors import ProviderRefused, UnsafePath
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network
from sandbox.port import Provider, Sandbox
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job, wait_for_output
from sandbox_rigs import VARIANTS

CANARY = "canary-6b1d0f"
TIMEOUT_SECONDS = 30.0
ISOLATED = ("control_groups", "rlimits")


@pytest.fixture(params=ISOLATED)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return the host provider in both of its isolated ways."""
    return VARIANTS["host"][request.param](tmp_path)


@pytest.fixture
def sleep_seconds() -> str:
    """Return how long a command sleeps that must not be found afterwards."""
    return unique_sleep_seconds()


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the host provider."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


@pytest.fixture
async def sandbox(provider: Provider, rig: ProviderRig) -> Sandbox:
    """Return a small sandbox without a network."""
    return await provider.create(rig.spec(memory_mb=128, pids=48))


async def test_the_gateways_secrets_do_not_get_in(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the parent's environment shows in env, in /proc or in any output."""
    monkeypatch.setenv("DOVECOTE_SECRET", CANARY)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/{CANARY}")
    script = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; cat /proc/self/mountinfo; set"
    result = await sandbox.run(ExecRequest(script=script, output_limit=1 << 18))
    assert b"DOVECOTE_WORKSPACE" in result.stdout
    assert CANARY.encode() not in result.stdout.replace(script.encode(), b"") + result.stderr


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "PYTHONSTARTUP", "GIT_SSH", "A=B", "A\0B"]
)
async def test_a_loaders_variable_is_refused(provider: Provider, rig: ProviderRig, name: str) -> None:
    """Variables that change what programs load, and those that are no names, make no sandbox."""
    with pytest.raises(ProviderRefused):
        await provider.create(rig.spec(env={name: "x"}))


async def test_a_value_cannot_smuggle_arguments(provider: Provider, rig: ProviderRig) -> None:
    """A NUL in a value, which would end an argument of bubblewrap, is refused."""
    with pytest.raises(ProviderRefused):
        await provider.create(rig.spec(env={"A": "x\0--bind\0/\0/host"}))


async def test_declared_values_are_on_no_command_line(
    provider: Provider, rig: ProviderRig, sleep_seconds: str
) -> None:
    """A variable's value is in no argument list that other users of the machine could read."""
    sandbox = await provider.create(rig.spec(env={"SECRET": CANARY}))
    await sandbox.spawn(
        BackgroundJob(id="job_1", token=TOKEN, script=f'echo "${{#SECRET}}"; sleep {sleep_seconds}')
    )
    await wait_for_output(sandbox, "job_1", str(len(CANARY)).encode())
    assert processes_with(sleep_seconds) != []
    assert processes_with(CANARY) == []
    assert processes_with(TOKEN) == []
    await sandbox.stop("job_1")


async def test_a_jobs_token_is_out_of_its_reach(sandbox: Sandbox, rig: ProviderRig) -> None:
    """The command of a job finds its token in no environment, argument, descriptor, memory or file."""
    half = len(TOKEN) // 2
    script = (
        f"wanted={TOKEN[:half]}; wanted+={TOKEN[half:]}; grep -F -a -c -f <(echo $wanted) <("
        "cat /proc/*/environ /proc/*/cmdline /dev/shm/* /tmp/* ~/* 2>/dev/null; env; set | grep -v ^wanted);"
        " for fd in /proc/[0-9]*/fd/*; do readlink $fd; done"
        " | grep -v -e ^pipe: -e ^/dev/null -e ^/proc -e ^anon_inode:.eventfd"
    )
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
    assert (await wait_for_job(sandbox, "job_1")).output == b"0\n"
    left = [path for path in (rig.directory / "state").rglob("*") if path.is_file()]
    assert left
    assert not any(TOKEN.encode() in path.read_bytes() for path in left)


def _require_limit(rig: ProviderRig, what: str) -> None:
    """Skip with the reason if this machine cannot set the limit that is tested."""
    reported = {ability.name: ability for ability in rig.plugin.capabilities(rig.settings)}[f"limit.{what}"]
    if not reported.present and (what == "pids" and os.getuid() == 0):
        pytest.skip(f"{what}: {reported.detail}")


async def test_a_fork_bomb_is_contained(sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str) -> None:
    """A fork bomb meets the limit of processes, ends with its run, and leaves nothing."""
    _require_limit(rig, "pids")
    script = f"exec -a bomb-{sleep_seconds} bash -c 'bomb() {{ bomb | bomb & }}; bomb; sleep 1'"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        result = await sandbox.run(ExecRequest(script=script, timeout=3, output_limit=4096))
    assert b"Resource temporarily unavailable" in result.stderr
    assert processes_with(f"bomb-{sleep_seconds}") == []


async def test_an_endless_output_is_cut(sandbox: Sandbox) -> None:
    """The output of `yes` is read and dropped: the limit holds and the run ends with its time-out."""
    result = await sandbox.run(ExecRequest(script="yes & yes >&2", timeout=0.5, output_limit=65536))
    assert result.timed_out
    assert (len(result.stdout), len(result.stderr)) == (65536, 65536)
    assert result.stdout_truncated
    assert result.stderr_truncated


async def test_memory_is_bounded(sandbox: Sandbox) -> None:
    """A program that needs twice the memory limit does not get it; small ones go on."""
    greedy = "python3 -c 'print(len(bytearray(256 << 20)))'"
    result = await sandbox.run(ExecRequest(script=f"{greedy}; test $? -ne 0 && echo survived"))
    assert result.stdout == b"survived\n"


async def test_a_daemon_that_forks_twice_dies_with_its_run(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A classic daemon, own session and no descriptors, is gone when run returns."""
    program = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"os.closerange(0, 64); time.sleep({sleep_seconds})\n"
    )
    result = await sandbox.run(ExecRequest(script=f"python3 -c '{program}'; echo done"))
    assert result.stdout == b"done\n"
    assert processes_with(sleep_seconds) == []


async def test_a_sparse_giant_is_refused(sandbox: Sandbox, rig: ProviderRig) -> None:
    """No file grows past the limit, holes included; memory file systems have their own."""
    script = "truncate -s 50G giant; head -c 300M /dev/zero > /tmp/giant; stat -c %s giant /tmp/giant"
    result = await sandbox.run(ExecRequest(script=script))
    sizes = [int(line) for line in result.stdout.split()]
    assert all(size < rig.settings.max_file_bytes for size in sizes)
    assert (rig.workspace / "giant").stat().st_blocks == 0


@contextmanager
def _service() -> Iterator[int]:
    """Listen on loopback, as NATS does, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_nothing_of_the_network_is_reachable(sandbox: Sandbox) -> None:
    """Without a network, neither the metadata address nor the host's loopback nor a name answers."""
    with _service() as port:
        tries = (f"127.0.0.1/{port}", "169.254.169.254/80", "1.1.1.1/443", f"localhost/{port}")
        checks = "; ".join(f"timeout 2 bash -c ': </dev/tcp/{target}' && echo reached" for target in tries)
        result = await sandbox.run(ExecRequest(script=f"{checks}; ls /sys/class/net; cat /proc/net/dev"))
    assert b"reached" not in result.stdout
    assert b"eth" not in result.stdout


async def test_a_limit_may_be_raised_and_lowered(provider: Provider, rig: ProviderRig) -> None:
    """A spec with another memory limit holds from the next run on."""
    greedy = ExecRequest(script="python3 -c 'print(len(bytearray(200 << 20)))' 2>/dev/null; true")
    for megabytes, reported in ((64, b""), (512, b"209715200\n"), (64, b"")):
        sandbox = await provider.create(rig.spec(memory_mb=megabytes))
        assert (await sandbox.run(greedy)).stdout == reported


@pytest.mark.parametrize("network", [Network.DENY_ALL, Network.ALLOW_ALL])
async def test_the_callback_is_reachable_and_nothing_beside_it(
    provider: Provider, rig: ProviderRig, network: Network
) -> None:
    """In every network mode the callback answers from inside, and of the gateway's data nothing shows."""
    try:
        sandbox = await provider.create(rig.spec(network=network))
    except ProviderRefused as error:
        assert network is Network.ALLOW_ALL
        pytest.skip(str(error))
    program = (
        "import socket, os; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['DOVECOTE_CALLBACK']);"
        "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(20).decode().split()[1])"
    )
    hidden = f"ls {rig.directory} {Path.home()} /root /var /sys /boot /srv 2>/dev/null"
    async with rig.callback_server.listening():
        result = await sandbox.run(ExecRequest(script=f'python3 -c "{program}"; {hidden}'))
    assert result.stdout == b"404\n"


async def test_the_machine_is_not_writable(sandbox: Sandbox) -> None:
    """Programs, the kernel's settings and the sandbox's own root are read-only; only four places are not."""
    script = (
        "for place in / /usr/bin /etc /dev /run/dovecote /proc/sys/kernel /mnt /home; do"
        " touch $place/mark 2>/dev/null && echo $place; done;"
        " for setting in $(find /proc/sys -type f 2>/dev/null | head -400) /proc/sysrq-trigger; do"
        " (: >> $setting) 2>/dev/null && echo $setting; done;"
        " for place in . ~ /tmp /dev/shm; do touch $place/mark || echo not $place; done"
    )
    result = await sandbox.run(ExecRequest(script=script))
    assert result.stdout + result.stderr == b""


async def test_there_is_nothing_to_climb_with(sandbox: Sandbox) -> None:
    """No capability, no new privileges, no further user namespaces, no devices, no terminal."""
    script = (
        "grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status | tr -d '\\t';"
        " unshare -Ur true 2>/dev/null && echo climbed; mknod d b 8 0 2>/dev/null && echo device;"
        " (: < /dev/tty) 2>/dev/null && echo terminal; id -u"
    )
    result = await sandbox.run(ExecRequest(script=script))
    zero = "0000000000000000"
    assert result.stdout.decode().split() == [
        f"CapPrm:{zero}",
        f"CapEff:{zero}",
        f"CapBnd:{zero}",
        "NoNewPrivs:1",
        "1000",
    ]


async def test_a_racing_link_never_leads_out(sandbox: Sandbox, rig: ProviderRig, tmp_path: Path) -> None:
    """While a directory is swapped for a link to outside, no read sees outside and no write lands there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(CANARY.encode())
    (rig.workspace / "real").mkdir()
    (rig.workspace / "real" / "file").write_bytes(b"inside")
    (rig.workspace / "swapped").symlink_to("real")  # else the first write could make it a directory
    stop = threading.Event()
    racer = threading.Thread(target=_race, args=(rig.workspace, outside, stop))
    racer.start()
    seen: set[bytes] = set()
    try:
        for _ in range(1500):
            with suppress(UnsafePath, OSError):
                seen.add(await sandbox.read("swapped/file", limit=100))
            with suppress(UnsafePath, OSError):
                await sandbox.write("swapped/sub/new", b"inside")
    finally:
        stop.set()
        racer.join()
    assert seen == {b"inside"}
    assert [path.name for path in outside.iterdir()] == ["file"]


def _race(workspace: Path, outside: Path, stop: threading.Event) -> None:
    link = workspace / "link"
    while not stop.is_set():
        for target in ("real", str(outside), "../outside"):
            link.symlink_to(target)
            link.rename(workspace / "swapped")


async def test_a_pipe_in_the_workspace_blocks_no_call(sandbox: Sandbox) -> None:
    """A FIFO where a file is expected is refused at once, for reading and for writing."""
    await sandbox.run(ExecRequest(script="mkfifo pipe; ln -s pipe link"))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(UnsafePath):
            await sandbox.read("pipe", limit=1)
        with pytest.raises((UnsafePath, OSError)):
            await sandbox.write("link", b"x")


async def test_a_job_whose_supervisor_is_killed_is_over(
    sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
) -> None:
    """Killing a job's supervisor kills the job; it is reported as ended with 137."""
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=f"echo begun; sleep {sleep_seconds}"))
    await wait_for_output(sandbox, "job_1", b"begun")
    (started,) = (rig.directory / "state").rglob("started")
    os.kill(json.loads(started.read_bytes())["pid"], signal.SIGKILL)
    report = await wait_for_job(sandbox, "job_1")
    assert (report.state, report.exit_code, report.output) == (BackgroundJobState.EXITED, 137, b"begun\n")
    assert report.unrecorded


async def test_a_job_of_an_earlier_boot_is_recreated(
    sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
) -> None:
    """A job that was running when the machine went down is reported as lost with it."""
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=f"echo begun; sleep {sleep_seconds}"))
    await wait_for_output(sandbox, "job_1", b"begun")
    (started,) = (rig.directory / "state").rglob("started")
    fields = json.loads(started.read_bytes())
    os.kill(fields["pid"], signal.SIGKILL)
    started.write_text(json.dumps({**fields, "boot": "an earlier one"}))
    assert (await wait_for_job(sandbox, "job_1")).state is BackgroundJobState.RECREATED


async def test_destroying_ends_the_jobs(
    provider: Provider, sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
) -> None:
    """A destroyed sandbox leaves no process, file or control group, whatever file modes it set."""
    await sandbox.run(ExecRequest(script="mkdir -p ~/locked/deep; chmod 000 ~/locked"))
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=f"echo begun; sleep {sleep_seconds}"))
    await wait_for_output(sandbox, "job_1", b"begun")
    await provider.destroy(sandbox.id)
    assert processes_with(sleep_seconds) == []
    assert list((rig.directory / "state" / "sandboxes").iterdir()) == []


SYSTEM_CALLS = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"io_uring_setup": 425, "open_tree": 428, "fsopen": 430}
if os.uname().machine == "x86_64":
    numbers |= {"userfaultfd": 323, "bpf": 321, "keyctl": 250, "perf_event_open": 298, "add_key": 248}
for name, number in numbers.items():
    answer = libc.syscall(number, 0, 0, 0, 0, 0)
    print(name, "denied" if answer == -1 and ctypes.get_errno() == errno.EPERM else "MADE")
for family in (40, 17, 38):
    try:
        socket.socket(family, socket.SOCK_DGRAM if family != 38 else socket.SOCK_SEQPACKET)
        print(family, "MADE")
    except OSError as error:
        print(family, "denied" if error.errno == errno.EAFNOSUPPORT else f"MADE {error}")
print(libc.syscall(900), ctypes.get_errno() == errno.ENOSYS)
socket.socketpair(); socket.socket(socket.AF_INET6); socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
"""


async def test_system_calls_that_reach_past_namespaces_are_denied(sandbox: Sandbox) -> None:
    """No virtual socket, packet socket, io_uring, userfaultfd, bpf, key ring or profiler; in a job either."""
    script = f"python3 - <<'PROGRAM'\n{SYSTEM_CALLS}\nPROGRAM"
    result = await sandbox.run(ExecRequest(script=script))
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
    job = await wait_for_job(sandbox, "job_1")
    for output in (result.stdout, job.output):
        assert b"MADE" not in output, output
        assert output.count(b"denied") >= 6, (output, result.stderr)
        assert b"-1 True" in output
