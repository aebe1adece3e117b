"""A networked sandbox on the host has a network of its own: nothing on this machine answers it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import docker_engine
from sandbox.errors import ProviderRefused
from sandbox.host.isolation import bubblewrap, network
from sandbox.host.isolation.network import Networking
from sandbox.host.settings import HostSettings
from sandbox.model import BackgroundJob, ExecRequest, Network
from sandbox.registry import built_in
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job
from sandbox_rigs import VARIANTS

CLOSED = (
    *("169.254.169.254", "169.254.1.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "10.0.0.1"),
    *("10.255.255.1", "172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.254", "100.64.0.1"),
)
"""Addresses of private networks and metadata services, of which none is a name server of this machine."""

HAS_DEFAULT_ROUTE = "grep -q '^[a-z0-9]*\t00000000' /proc/net/route && echo networked"


@pytest.fixture
def networking() -> Networking:
    """Return what this machine offers; skips where pasta does not work."""
    binary = bubblewrap.find()
    if bubblewrap.probe(binary) is not None or binary is None:
        pytest.skip("no sandbox can be created on this machine")
    found = network.find(None, bubblewrap.probe_command(binary))
    if not found.isolated:
        pytest.skip(f"no user-mode networking on this machine: {found.detail}")
    return found


def tries(port: int) -> str:
    """Return a script that tries to reach the port at every address of this machine."""
    targets = [f"{address}/{port}" for address in ("127.0.0.1", "localhost", *network.own_addresses())]
    targets.append("169.254.169.254/80")
    return "; ".join(f"timeout 2 bash -c ': </dev/tcp/{target}' 2>/dev/null && echo in" for target in targets)


@pytest.mark.usefixtures("networking")
@pytest.mark.parametrize("variant", ["control_groups", "rlimits"])
async def test_no_service_of_this_machine_is_reachable(variant: str, tmp_path: Path) -> None:
    """A service on all addresses answers us and does not answer an `allow-all` sandbox, nor its job."""
    rig = VARIANTS["host"][variant](tmp_path)
    with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", *network.own_addresses()):
            socket.create_connection((address, port), timeout=10).close()
        async with rig.open() as provider:
            sandbox = await provider.create(rig.spec(network=Network.ALLOW_ALL))
            script = f"{tries(port)}; {HAS_DEFAULT_ROUTE}"
            for _ in range(2):
                result = await sandbox.run(ExecRequest(script=script))
                assert result.stdout == b"networked\n", result.stderr
            await sandbox.spawn(BackgroundJob(id="job_1", script=script, token=TOKEN))
            assert (await wait_for_job(sandbox, "job_1")).output == b"networked\n"
            await provider.destroy(sandbox.id)


@pytest.mark.usefixtures("networking")
async def test_a_command_ignores_no_signals(tmp_path: Path) -> None:
    """A program that writes to a closed pipe ends without an error, as it does in other sandboxes."""
    rig = VARIANTS["host"]["control_groups"](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(network=Network.ALLOW_ALL))
        result = await sandbox.run(ExecRequest(script="yes | head -n 1; echo ${PIPESTATUS[0]}"))
        await provider.destroy(sandbox.id)
    assert (result.stdout, result.stderr) == (b"y\n141\n", b"")


@pytest.mark.usefixtures("networking")
async def test_private_and_metadata_addresses_are_rejected(tmp_path: Path) -> None:
    """Over TCP and UDP a sandbox gets the error at once; name servers can be reached at port 53."""
    attempts = [[address, port] for address in CLOSED for port in (53, 80)]
    program = (
        "import errno, json, socket, sys\n"
        "for address, port in json.loads(sys.argv[1]):\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
        "        with socket.socket(socket.AF_INET, kind) as client:\n"
        "            client.settimeout(5)\n"
        "            try:\n"
        "                client.connect((address, port))\n"
        "                client.send(b'x')\n"
        "                print('sent', address, kind.name)\n"
        "            except OSError as error:\n"
        "                print(errno.errorcode.get(error.errno, 'silence'))\n"
    )
    rig = VARIANTS["host"]["control_groups"](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(network=Network.ALLOW_ALL))
        await sandbox.write("try.py", program.encode())
        reported = await sandbox.run(
            ExecRequest(script=f"python3 try.py '{json.dumps(attempts)}'", timeout=60)
        )
        await provider.destroy(sandbox.id)
    said = reported.stdout.decode().splitlines()
    assert len(said) == 2 * len(attempts), reported.stderr
    assert set(said) <= {"EHOSTUNREACH", "ENETUNREACH", "EPERM"}


@pytest.mark.usefixtures("networking")
async def test_the_operator_opens_a_private_network(tmp_path: Path) -> None:
    """A listed network is not rejected, and without the filter none is but those of metadata services."""
    targets = ("10.255.255.1", "10.1.2.3")
    trying = "; ".join(f"timeout 3 bash -c ': </dev/tcp/{one}/9' 2>&1 | grep -m 1 host" for one in targets)
    reported = {}
    opening: list[dict[str, Any]] = [{}, {"reachable": ["10.1.2.0/24"]}, {"network_filter": False}]
    for place, change in enumerate(opening):
        directory = tmp_path / str(place)
        directory.mkdir()
        rig = replace(
            VARIANTS["host"]["control_groups"](directory), settings=HostSettings.model_validate(change)
        )
        async with rig.open() as provider:
            sandbox = await provider.create(rig.spec(network=Network.ALLOW_ALL))
            reported[place] = (await sandbox.run(ExecRequest(script=trying))).stdout.count(
                b"No route to host"
            )
            await provider.destroy(sandbox.id)
    assert reported == {0: 2, 1: 1, 2: 0}


def test_the_addresses_of_this_machine_would_be_reachable_otherwise(networking: Networking) -> None:
    """The check above proves something: without the blocked addresses, pasta connects to them.

    The sandbox has the machine's first address too. The bridge of a container engine has another one.
    """
    if len(network.own_addresses()) < 2:
        docker_engine.open_network(docker_engine.shared_engine())
    others = network.own_addresses()
    binary = bubblewrap.find()
    blocked = ",".join(f"{address}/32" for address in others)
    unfiltered = replace(networking, is_filtered=False)
    wrapper = ["" if word == blocked else word for word in unfiltered.wrapper()]
    with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
        program = bubblewrap.probe_command(binary or Path("bwrap"))[:-1]
        script = ["/bin/bash", "-c", tries(server.getsockname()[1])]
        found = subprocess.run([*wrapper, *program, *script], capture_output=True, check=False, env={})
    assert b"in" in found.stdout, found.stderr


def own_namespace() -> str:
    """Return the name of this process's network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


async def test_allow_all_is_refused_without_user_mode_networking(tmp_path: Path) -> None:
    """Where pasta does not work there is no networked sandbox, and never the network of this machine."""
    broken = tmp_path / "pasta"
    broken.write_text("#!/bin/sh\necho 'no tun device' >&2\nexit 1\n")
    broken.chmod(0o755)
    settings = HostSettings(network_helper=broken)
    rig = ProviderRig(name="broken", plugin=built_in()["host"], settings=settings, directory=tmp_path)
    async with rig.open() as provider:
        with pytest.raises(ProviderRefused, match=r"allow-all is not possible .*install pasta"):
            await provider.create(rig.spec(network=Network.ALLOW_ALL))
        sandbox = await provider.create(rig.spec())
        with pytest.raises(ProviderRefused, match="allow-all is not possible"):
            await provider.connect(sandbox.id, rig.spec(network=Network.ALLOW_ALL))
        inside = await sandbox.run(ExecRequest(script="readlink /proc/self/ns/net"))
        assert inside.stdout.decode().strip() not in {"", own_namespace()}
        await provider.destroy(sandbox.id)
    reported = {one.name: one for one in built_in()["host"].capabilities(settings)}["network"]
    assert not reported.present
    assert "allow-all is refused" in reported.detail


def test_a_helper_that_fails_and_leaves_a_process_is_named_at_once(tmp_path: Path) -> None:
    """Pasta without /dev/net/tun ends with an error, and a child of it keeps the file of errors open."""
    broken = tmp_path / "pasta"
    script = "sleep 3600 & echo $! > \"$0.child\"\n(echo 'no tun device'; echo 'no syslog') >&2\nexit 1\n"
    broken.write_text(f"#!/bin/sh\n{script}")
    broken.chmod(0o755)
    found = network.find(broken, ("/bin/true",))
    if "Operation not permitted" in found.detail:
        pytest.skip("root may make no namespace here, as in a container without CAP_SYS_ADMIN")
    assert found.detail.startswith(f"{broken} does not work here: no tun device")
    child = int(Path(f"{broken}.child").read_text())
    with suppress(ProcessLookupError):
        end = os.pidfd_open(child)
        assert select.select([end], [], [], 10)[0]
        os.close(end)
