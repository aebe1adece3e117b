"""M13: a sandbox with `allow-all` reaches neither the machine nor neighbours nor private addresses."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

import docker_engine
from docker_rig import engine_rig, outside_container
from egress.addresses import machine_addresses
from repetitions import exhaustive
from sandbox.docker import container
from sandbox.errors import ProviderRefused, SandboxOutdated
from sandbox.model import ExecRequest, Network
from sandbox.port import Provider, Sandbox
from sandbox.testing.rig import ProviderRig

PROGRAM = """
import errno, json, socket, sys
told = {}
for address, port in json.load(open(sys.argv[1])):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        client = socket.socket(family, kind)
        client.settimeout(15)
        try:
            place = socket.getaddrinfo(address, port, family, kind)[0][4]
            client.connect(place)
            client.send(b"x")
            client.recv(1)
            outcome = "reached"
        except OSError as error:
            outcome = errno.errorcode.get(error.errno, "silence")
        told[f"{address} {kind.name}"] = outcome
print(json.dumps(told))
"""

CLOSED = (
    *("169.254.169.254", "169.254.170.2", "169.254.169.253", "169.254.1.1", "100.100.100.200", "192.0.0.192"),
    *("168.63.129.16", "10.0.0.1", "10.255.255.1", "172.16.0.1", "172.31.255.254", "192.168.0.1"),
    *("192.168.255.254", "100.64.0.1", "198.18.0.1", "0.0.0.1", "224.0.0.251", "240.0.0.1"),
    *("fd00:ec2::254", "fd20:ce::254", "64:ff9b::a9fe:a9fe", "ff02::1%eth0", "2002:a00:1::1"),
)
"""Addresses that nothing may be sent to from a sandbox: metadata services, private networks, multicast."""

REFUSED = {"EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "EINVAL", "EADDRNOTAVAIL"}
"""The error that a sender gets from the filter, or a kernel without a route; none is a time-out."""


@asynccontextmanager
async def echoes() -> AsyncIterator[int]:
    """Answer each byte at one port of every address of the machine, over TCP and UDP."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    port = int(listener.getsockname()[1])

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: Any) -> None:
            self.transport.sendto(data, address)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    with ExitStack() as stack:
        for family, place in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            packets = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                packets.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            packets.bind((place, port))
            transport, _ = await loop.create_datagram_endpoint(Echo, sock=packets)
            stack.callback(transport.close)
        async with await asyncio.start_server(answer, sock=listener):
            yield port


@asynccontextmanager
async def opened(rig: ProviderRig, **changes: Any) -> AsyncIterator[tuple[Provider, Sandbox]]:
    """Open an allow-all sandbox, and destroy it afterwards."""
    async with rig.open() as provider:
        try:
            yield provider, await provider.create(rig.spec(network=Network.ALLOW_ALL, **changes))
        finally:
            for sandbox_id, _ in await provider.list(rig.label):
                await provider.destroy(sandbox_id)


async def outcomes(sandbox: Sandbox, targets: list[tuple[str, int]]) -> dict[str, str]:
    """Return what became of each attempt to reach a target."""
    await sandbox.write("targets.json", json.dumps(targets).encode())
    command = ExecRequest(script="python3 - targets.json", stdin=PROGRAM.encode(), timeout=120)
    result = await sandbox.run(command)
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def own_addresses() -> list[str]:
    """Return the addresses at which the machine's services answer from a bridge of its own."""
    return [str(one) for one in machine_addresses() if not one.is_loopback and not one.is_link_local]


@pytest.mark.parametrize("kind", ["docker", "podman"])
async def test_no_packet_reaches_what_is_not_public(kind: str, tmp_path: Path) -> None:
    """More than twenty attempts are refused, also at the machine's and a neighbour's addresses."""
    engine = docker_engine.shared_engine(kind)
    network = docker_engine.open_network(engine)
    async with (
        echoes() as port,
        outside_container(engine, HostConfig={"NetworkMode": network}) as neighbour,
        opened(engine_rig("filtered", tmp_path, kind=kind, network=network)) as (_, sandbox),
    ):
        beside = await neighbour_addresses(engine, neighbour.name, network)
        assert len(beside) == 2, "IPv4 and IPv6"
        targets = [(address, 80) for address in CLOSED]
        targets += [(address, port) for address in (*own_addresses(), *beside)]
        reported = await outcomes(sandbox, targets)
    assert {name: outcome for name, outcome in reported.items() if outcome not in REFUSED} == {}
    assert len(reported) >= 40


async def neighbour_addresses(engine: docker_engine.EngineProcess, name: str, network: str) -> list[str]:
    """Return a container's addresses on a network, of IPv4 and of IPv6."""
    details = json.loads(await asyncio.to_thread(engine.call, "GET", f"/containers/{name}/json"))
    found = details["NetworkSettings"]["Networks"][network]
    return [str(found[name]) for name in ("IPAddress", "GlobalIPv6Address") if found[name]]


async def test_what_the_operator_opens_is_reached(tmp_path: Path) -> None:
    """Without the filter, or with the bridge listed as reachable, the machine answers over IPv4 and IPv6."""
    engine = docker_engine.shared_engine()
    network = docker_engine.open_network(engine)
    described = json.loads(engine.call("GET", f"/networks/{network}"))["IPAM"]["Config"]
    subnets = [one["Subnet"] for one in described]
    gateways = [str(next(ip_network(subnet).hosts())) for subnet in subnets]
    async with echoes() as port:
        targets = [(gateway, port) for gateway in gateways]
        opening: list[dict[str, Any]] = [{"network_filter": False}, {"reachable": subnets}]
        for number, settings in enumerate(opening):
            directory = tmp_path / str(number)
            directory.mkdir()
            async with opened(engine_rig("opened", directory, network=network, **settings)) as (_, sandbox):
                assert set((await outcomes(sandbox, targets)).values()) == {"reached"}


async def test_the_filter_outlasts_stops_of_the_sandbox_and_of_its_keeper(tmp_path: Path) -> None:
    """After both were stopped the next command runs behind the same rules; destroying leaves no container."""
    engine = docker_engine.shared_engine()
    network = docker_engine.open_network(engine)
    async with (
        echoes() as port,
        opened(engine_rig("filtered", tmp_path, network=network), persistent=True) as (provider, sandbox),
    ):
        keeper = container.keeper_id(sandbox.id)
        gateway = json.loads(engine.call("GET", f"/networks/{network}"))["IPAM"]["Config"][0]["Gateway"]
        for name in (sandbox.id, keeper):
            engine.call("POST", f"/containers/{name}/stop?t=0")
        reported = await outcomes(sandbox, [(gateway, port)])
        assert set(reported.values()) <= REFUSED
        engine.call("DELETE", f"/containers/{sandbox.id}?force=1")
        assert sandbox.id in {one for one, _ in await provider.list()}
        await provider.destroy(sandbox.id)
        assert "No such container" in engine.call("GET", f"/containers/{keeper}/json")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("docker", "kill"), exhaustive("docker", "restart?t=0"), exhaustive("podman", "restart?t=0")],
)
async def test_a_keeper_that_ended_alone_is_noticed(kind: str, words: str, tmp_path: Path) -> None:
    """The next command learns that the network is lost; a restart of the container gives it back, filtered.

    Containers that others restarted get the rules before the next command.
    """
    engine = docker_engine.shared_engine(kind)
    network = docker_engine.open_network(engine)
    rig = engine_rig("kept", tmp_path, kind=kind, network=network)
    async with echoes() as port, opened(rig) as (provider, sandbox):
        keeper = container.keeper_id(sandbox.id)
        gateway = json.loads(engine.call("GET", f"/networks/{network}"))["IPAM"]["Config"][0]["Gateway"]
        spec = rig.spec(network=Network.ALLOW_ALL)
        await sandbox.run(ExecRequest(script="touch /var/tmp/kept"))
        engine.call("POST", f"/containers/{keeper}/{words}")
        with pytest.raises(SandboxOutdated, match="network"):
            await sandbox.run(ExecRequest(script="true"))
        with pytest.raises(SandboxOutdated, match="network"):
            await provider.connect(sandbox.id, spec)
        again = await provider.create(spec)
        found = await again.run(ExecRequest(script="ls /var/tmp; grep -c eth0 /proc/net/dev"))
        assert found.stdout == b"kept\n1\n"
        for name in (keeper, sandbox.id):
            engine.call("POST", f"/containers/{name}/restart?t=0")
        assert set((await outcomes(again, [(gateway, port)])).values()) <= REFUSED


async def test_without_a_filter_allow_all_is_refused(tmp_path: Path) -> None:
    """An engine that cannot install it creates no sandbox, and the error says what to do."""
    engine = docker_engine.shared_engine()
    rig = engine_rig("refused", tmp_path, network="none")
    async with outside_container(engine) as other:
        words = f"container={other.name}&repo=localhost/dovecote-test&tag=bare&changes=ENV+PATH=/nowhere"
        engine.call("POST", f"/commit?{words}", json_body={})
    bare = rig.settings.model_copy(update={"image": "localhost/dovecote-test:bare"})
    async with rig.plugin.open(bare, rig.provider_context) as provider:
        try:
            with pytest.raises(ProviderRefused, match="restricted"):
                await provider.create(rig.spec(network=Network.ALLOW_ALL))
        finally:
            for sandbox_id, _ in await provider.list(rig.label):
                await provider.destroy(sandbox_id)
            engine.call("DELETE", "/images/localhost/dovecote-test:bare")
