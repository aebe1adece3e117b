"""The packet filter of an `allow-all` sandbox: nftables rules, as bytes for the kernel; pure functions.

The rules stand in the network namespace that a sandbox joins, at the hook for packets that its processes
send. They accept answers to connections from outside, the name servers and what the operator lists. They
reject every address that is not public, and those of the machine. The numbers are those of linux/netlink.h,
linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, ip_address, ip_network
from itertools import count

from egress.addresses import ISATAP, PUBLIC_V6, IpAddress, IpNetwork, closed_networks

TABLE, CHAIN = b"dovecote", b"output"
NAME_SERVER_PORT = 53
LOOPBACK_INDEX = 1
"""The index of the loopback interface in every network namespace."""

_REQUEST, _ACKNOWLEDGE, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 16, 17, 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
_INET = 1
_FAMILIES = {4: 2, 6: 10}
"""The kernel's number of each version of IP."""

_NESTED = 0x8000
_HOOK_OUTPUT, _ACCEPT = 3, 1
_ESTABLISHED = 2
_NEIGHBOUR_MESSAGES = (133, 135, 136)
"""ICMPv6 types without which an IPv6 network does not work: solicitation of routers and of neighbours."""


class Meta(Enum):
    """What is known of a packet besides its bytes; the values are the kernel's keys."""

    OUTPUT_INTERFACE = 5
    FAMILY = 15
    PROTOCOL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaTest:
    """The packet has this property."""

    key: Meta
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesTest:
    """The packet's bytes at an offset of a header are these under the mask, or are not."""

    offset: int
    value: bytes
    mask: bytes
    transport: bool = False
    equal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTest:
    """The packet belongs to a connection that was accepted."""


Test = MetaTest | BytesTest | ConnectionTest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """If all tests hold, the packet is accepted, or rejected with an error for its sender."""

    tests: tuple[Test, ...]
    accept: bool


def rules(
    *, name_servers: Iterable[IpAddress], reachable: Iterable[IpNetwork], machine: Iterable[IpAddress]
) -> list[Rule]:
    """Return the rules in order; the first whose tests hold decides, and without one a packet passes."""
    return [
        Rule(tests=(_interface(LOOPBACK_INDEX),), accept=True),
        Rule(tests=(ConnectionTest(),), accept=True),
        *(_neighbours(kind) for kind in _NEIGHBOUR_MESSAGES),
        *(rule for server in name_servers for rule in _name_server(server)),
        *(Rule(tests=_to(network), accept=True) for network in reachable),
        *(Rule(tests=_to(ip_network(address)), accept=False) for address in machine),
        *(Rule(tests=_to(network), accept=False) for network in closed_networks()),
        Rule(tests=_to(PUBLIC_V6, equal=False), accept=False),
        *(Rule(tests=_to_isatap(word), accept=False) for word in ISATAP),
    ]


def parse_name_servers(text: str) -> list[IpAddress]:
    """Return the addresses of a resolv.conf's name servers, without those that a packet cannot be sent to."""
    words = (line.split() for line in text.splitlines())
    named = (line[1] for line in words if line[:1] == ["nameserver"] and line[1:])
    return [address for text in named if (address := _address(text)) is not None]


def _address(text: str) -> IpAddress | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _interface(index: int) -> MetaTest:
    return MetaTest(key=Meta.OUTPUT_INTERFACE, value=struct.pack("=I", index))


def _family(version: int) -> MetaTest:
    return MetaTest(key=Meta.FAMILY, value=bytes([_FAMILIES[version]]))


def _protocol(number: int) -> MetaTest:
    return MetaTest(key=Meta.PROTOCOL, value=bytes([number]))


def _to(network: IpNetwork, *, equal: bool = True) -> tuple[Test, ...]:
    """Return the tests for a packet to one of these addresses (RFC 791, 3.1; RFC 8200, 3)."""
    destination = BytesTest(
        offset=16 if isinstance(network, IPv4Network) else 24,
        value=network.network_address.packed,
        mask=network.netmask.packed,
        equal=equal,
    )
    return (_family(network.version), destination)


def _to_isatap(word: int) -> tuple[Test, ...]:
    part = BytesTest(offset=32, value=struct.pack("!I", word), mask=b"\xff" * 4)
    return (_family(6), part)


def _neighbours(kind: int) -> Rule:
    message = BytesTest(offset=0, value=bytes([kind]), mask=b"\xff", transport=True)
    return Rule(tests=(_family(6), _protocol(socket.IPPROTO_ICMPV6), message), accept=True)


def _name_server(address: IpAddress) -> Iterator[Rule]:
    port = BytesTest(offset=2, value=struct.pack("!H", NAME_SERVER_PORT), mask=b"\xff\xff", transport=True)
    for number in (socket.IPPROTO_UDP, socket.IPPROTO_TCP):
        yield Rule(tests=(*_to(ip_network(address)), _protocol(number), port), accept=True)


def batch(wanted: Sequence[Rule]) -> bytes:
    """Return netlink messages that replace the whole table at once; the last asks for an answer."""
    table = _attribute(1, TABLE + b"\0")
    hook = _attribute(4 | _NESTED, _number(1, _HOOK_OUTPUT) + _number(2, 0))
    chain = table + _attribute(3, CHAIN + b"\0") + hook + _number(5, _ACCEPT) + _attribute(7, b"filter\0")
    messages = [
        (_NEW_TABLE, _CREATE, table),
        (_DELETE_TABLE, 0, table),
        (_NEW_TABLE, _CREATE, table),
        (_NEW_CHAIN, _CREATE, chain),
        *((_NEW_RULE, _CREATE | _APPEND, _rule(rule)) for rule in wanted),
    ]
    number = count(1)
    last = len(messages) - 1
    encoded = [
        _message(kind | _SUBSYSTEM << 8, flags | (_ACKNOWLEDGE if at == last else 0), next(number), content)
        for at, (kind, flags, content) in enumerate(messages)
    ]
    begin = _message(_BATCH_BEGIN, 0, 0, b"", family=0, resource=_SUBSYSTEM)
    end = _message(_BATCH_END, 0, next(number), b"", family=0, resource=_SUBSYSTEM)
    return b"".join([begin, *encoded, end])


def _message(
    kind: int, flags: int, number: int, content: bytes, *, family: int = _INET, resource: int = 0
) -> bytes:
    body = struct.pack("!BBH", family, 0, resource) + content
    return struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, number, 0) + body


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("!I", value))


def _data(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, _attribute(1, value))


def _rule(rule: Rule) -> bytes:
    expressions = [part for test in rule.tests for part in _expressions(test)]
    expressions.append(_ending(accept=rule.accept))
    listed = b"".join(_attribute(1 | _NESTED, expression) for expression in expressions)
    return _attribute(1, TABLE + b"\0") + _attribute(2, CHAIN + b"\0") + _attribute(4 | _NESTED, listed)


def _expression(name: bytes, content: bytes) -> bytes:
    return _attribute(1, name + b"\0") + _attribute(2 | _NESTED, content)


def _ending(*, accept: bool) -> bytes:
    """Return the end of a rule; a rejected packet is answered as administratively prohibited."""
    if not accept:
        return _expression(b"reject", _number(1, 2) + _attribute(2, b"\3"))
    code = _attribute(2 | _NESTED, _number(1, _ACCEPT))
    return _expression(b"immediate", _number(1, 0) + _attribute(2 | _NESTED, code))


def _expressions(test: Test) -> Iterator[bytes]:
    """Yield the steps of a test: load into register 1, mask, compare."""
    match test:
        case MetaTest():
            yield _expression(b"meta", _number(1, 1) + _number(2, test.key.value))
            yield _compare(test.value)
        case ConnectionTest():
            mask = struct.pack("=I", _ESTABLISHED)
            yield _expression(b"ct", _number(1, 1) + _number(2, 0))
            yield _mask(mask)
            yield _compare(bytes(4), equal=False)
        case BytesTest():
            base = _number(2, 2 if test.transport else 1)
            place = _number(3, test.offset) + _number(4, len(test.value))
            yield _expression(b"payload", _number(1, 1) + base + place)
            if test.mask.strip(b"\xff"):
                yield _mask(test.mask)
            yield _compare(test.value, equal=test.equal)


def _mask(mask: bytes) -> bytes:
    content = _number(1, 1) + _number(2, 1) + _number(3, len(mask)) + _data(4, mask)
    return _expression(b"bitwise", content + _data(5, bytes(len(mask))))


def _compare(value: bytes, *, equal: bool = True) -> bytes:
    return _expression(b"cmp", _number(1, 1) + _number(2, 0 if equal else 1) + _data(3, value))
