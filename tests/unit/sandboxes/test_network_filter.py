"""The packet filter of allow-all: which packets its rules accept, and the bytes that the kernel takes."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.addresses import IpAddress, embedded_ipv4, is_public
from sandbox.docker import container
from sandbox.docker.settings import DockerSettings
from sandbox.errors import ProviderRefused
from sandbox.model import Network, SandboxSpec
from sandbox.network.network_filter import (
    ConnectionTest,
    Meta,
    MetaTest,
    Test,
    batch,
    parse_name_servers,
    rules,
)

UDP, TCP, ICMPV6 = 17, 6, 58
MACHINE, SERVER = ipaddress.ip_address("44.1.2.3"), ipaddress.ip_address("10.9.9.9")
REACHABLE = ipaddress.ip_network("10.20.0.0/16")
RULES = rules(name_servers=[SERVER], reachable=[REACHABLE], machine=[MACHINE])


def passes(
    address: str | IpAddress,
    *,
    protocol: int = TCP,
    transport: bytes = b"\xc3\x50\x00\x50",
    interface: int = 2,
    established: bool = False,
) -> bool:
    """Return whether the rules let a packet to an address pass, as the kernel decides it."""
    to = ipaddress.ip_address(address)
    network = bytes(16 if to.version == 4 else 24) + to.packed
    facts = {
        Meta.FAMILY: bytes([2 if to.version == 4 else 10]),
        Meta.PROTOCOL: bytes([protocol]),
        Meta.OUTPUT_INTERFACE: struct.pack("=I", interface),
    }

    def holds(test: Test) -> bool:
        if isinstance(test, MetaTest):
            return facts[test.key] == test.value
        if isinstance(test, ConnectionTest):
            return established
        header = transport if test.transport else network
        part = header[test.offset : test.offset + len(test.value)]
        masked = bytes(one & other for one, other in zip(part, test.mask, strict=True))
        return (masked == test.value) is test.equal

    return next((rule.accept for rule in RULES if all(holds(test) for test in rule.tests)), True)


@given(st.ip_addresses())
def test_exactly_public_addresses_pass(address: IpAddress) -> None:
    """The rules and the check of outgoing connections agree; no IPv4 address hides in an IPv6 one."""
    named = {MACHINE, SERVER}
    if address in named or (address.version == 4 and address in REACHABLE):
        return
    assert passes(address) == (is_public(address) and embedded_ipv4(address) is None)


@pytest.mark.parametrize("address", ["44.1.2.3", "169.254.169.254", "fd00:ec2::254", "fe80::1", "10.9.9.9"])
def test_addresses_of_the_machine_and_of_metadata_do_not_pass(address: str) -> None:
    """The machine's public address is closed like private ones."""
    assert not passes(address)


def test_what_a_network_needs_passes() -> None:
    """Answers, loopback, the name server's port, neighbour discovery and what the operator lists."""
    question = b"\xc3\x50\x00\x35"
    assert passes(SERVER, protocol=UDP, transport=question)
    assert passes(SERVER, protocol=TCP, transport=question)
    assert not passes("10.9.9.8", protocol=UDP, transport=question)
    assert passes("10.20.3.4")
    assert passes("127.0.0.11", interface=1)
    assert not passes("127.0.0.11")
    assert passes("10.1.1.1", established=True)
    assert passes("ff02::1:ff00:1", protocol=ICMPV6, transport=bytes([135, 0, 0, 0]))
    assert not passes("ff02::1", protocol=ICMPV6, transport=bytes([128, 0, 0, 0]))


def test_the_messages_are_a_batch() -> None:
    """Each message has its length and number; the last one before the end asks for an answer."""
    content = batch(RULES)
    kinds, at = [], 0
    while at < len(content):
        length, kind, flags, number, _ = struct.unpack_from("=IHHII", content, at)
        kinds.append((kind, bool(flags & 4), number))
        assert length % 4 == 0
        at += length
    assert [kind for kind, _, _ in kinds[:5]] == [16, 10 << 8, 10 << 8 | 2, 10 << 8, 10 << 8 | 3]
    assert {kind for kind, _, _ in kinds[5:-1]} == {10 << 8 | 6}
    assert len(kinds[5:-1]) == len(RULES)
    assert [asks for _, asks, _ in kinds[:-1]] == [False] * (len(kinds) - 2) + [True]
    assert [number for _, _, number in kinds[1:]] == list(range(1, len(kinds)))


def test_name_servers_are_those_of_the_file() -> None:
    """Lines that name no address are skipped, and zones are left out."""
    text = "# x\nnameserver 10.1.1.1\nsearch a\nnameserver\nnameserver fe80::1%eth0\nnameserver x\n"
    assert [str(one) for one in parse_name_servers(text)] == ["10.1.1.1", "fe80::1"]


@pytest.mark.parametrize(
    "settings", [{"network": "host"}, {"network": "container:x"}, {"network": "ns:/x"}, {"runtime": "runsc"}]
)
def test_where_the_filter_would_not_hold_allow_all_is_refused(settings: dict[str, str]) -> None:
    """Rules are neither loaded on the machine nor passed by a runtime's own network stack."""
    spec = SandboxSpec(label="one", namespace="one", network=Network.ALLOW_ALL)
    with pytest.raises(ProviderRefused):
        container.validate_spec(spec, DockerSettings.model_validate(settings))
    container.validate_spec(spec, DockerSettings.model_validate({**settings, "network_filter": False}))
