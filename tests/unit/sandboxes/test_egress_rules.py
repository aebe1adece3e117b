"""The rules and parsers of the egress proxy, with hostile and adversarial input."""

from __future__ import annotations

import ssl

import pytest

from egress.addresses import parse_networks
from egress.policy import EgressRefused
from egress.proxy.client_hello import MAX_HELLO_BYTES, ClientHelloReader, NotClientHello
from egress.proxy.request_head import InvalidRequest, parse_authority, parse_head
from egress.proxy.rules import EgressRules, parse_domain
from sandbox.config import SandboxConfig, problems
from sandbox.registry import built_in


def client_hello(name: str | None) -> bytes:
    """Return the first bytes that OpenSSL sends for a server name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def split_into_records(hello: bytes, size: int) -> bytes:
    """Return the same handshake message in several records."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.mark.parametrize("name", ["example.org", "a.b.example.org", None])
@pytest.mark.parametrize("size", [1, 7, 100000])
def test_the_server_name_is_read_in_any_pieces(name: str | None, size: int) -> None:
    """The name is found however the bytes and records are cut, and only once the message is whole."""
    for hello in (client_hello(name), split_into_records(client_hello(name), 50)):
        reader = ClientHelloReader()
        pieces = [hello[at : at + size] for at in range(0, len(hello), size)]
        assert [reader.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert reader.server_name() == name
        assert reader.received == hello


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x02\x00\x00\x05abcde",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        (b"\x16\x03\x01\x40\x00" + b"\x01\x00\x7f\x00" + b"a" * 16380) * 3,
    ],
)
def test_what_is_no_client_hello_is_refused(garbage: bytes) -> None:
    """Other protocols, other messages and messages above the limit are refused."""
    with pytest.raises(NotClientHello):
        ClientHelloReader().feed(garbage)


def test_every_cut_of_a_client_hello_is_refused_or_waits() -> None:
    """A message whose inner lengths lie raises NotClientHello and nothing else."""
    hello = bytearray(client_hello("example.org"))
    for place in range(9, len(hello)):
        for value in (0, 255):
            changed = bytearray(hello)
            changed[place] = value
            reader = ClientHelloReader()
            assert reader.feed(bytes(changed))
            try:
                reader.server_name()
            except NotClientHello:
                continue


def test_a_dribbled_message_is_bounded() -> None:
    """One byte in each record and in each piece ends at the limit."""
    record = b"\x16\x03\x01\x00\x01"
    message = b"\x01\x00\x7f\x00".ljust(MAX_HELLO_BYTES, b"a")
    sent = b"".join(record + bytes([byte]) for byte in message)
    with pytest.raises(NotClientHello, match="longer than"):
        feed_bytewise(ClientHelloReader(), sent)


def feed_bytewise(reader: ClientHelloReader, sent: bytes) -> None:
    """Feed a reader with one byte at a time."""
    for byte in sent:
        reader.feed(bytes([byte]))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("*.Example.org", "*.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_a_domain_has_one_form(text: str, normal: str) -> None:
    """Spellings of one name are one name."""
    assert parse_domain(text) == normal


@pytest.mark.parametrize(
    "text", ["", "*", "*.", "*.org", "*.*.org", "a*.org", "https://a.org", "a.org:443", "a.org/x", "10.0.0.1",
             "[::1]", "a b.org", "a..org", ".org", "x" * 300, "2130706433", "user@a.org"],
)  # fmt: skip
def test_what_is_no_domain_is_refused(text: str) -> None:
    """A list holds names and wildcards of at least two labels."""
    with pytest.raises(ValueError, match=r"."):
        parse_domain(text)


def test_a_wildcard_matches_names_below_it() -> None:
    """Not for the name itself, and not for names that only end with the same letters."""
    rules = EgressRules.parse(["*.example.org", "one.example.net"], [])
    assert [
        name
        for name in (
            *("a.example.org", "a.b.example.org", "one.example.net"),
            *("example.org", "badexample.org", "a.one.example.net", "org", "example.org.evil.net"),
        )
        if rules.allows_name(name)
    ] == ["a.example.org", "a.b.example.org", "one.example.net"]


CLOSED = (
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"),
    *("192.0.0.192", "168.63.129.16", "224.0.0.1", "::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1"),
    "64:ff9b::a00:1",
)


@pytest.mark.parametrize("address", CLOSED)
@pytest.mark.parametrize("is_named", [True, False])
def test_private_addresses_need_both_lists(address: str, *, is_named: bool) -> None:
    """The record alone does not open a private address, and neither does the operator alone."""
    everything = ["0.0.0.0/0", "::/0"]
    both = EgressRules.parse([], everything, private=parse_networks(everything))
    both.check_address(address, 443, is_named=is_named)
    for rules in (
        EgressRules.parse(["*.example.org"], everything),
        EgressRules.parse(["*.example.org"], [], private=parse_networks(everything)),
    ):
        with pytest.raises(EgressRefused, match="private, local or reserved"):
            rules.check_address(address, 443, is_named=is_named)


@pytest.mark.parametrize(
    "text",
    [
        *("example.org", ":443", "example.org:0", "example.org:65536", "a b:443", "example.org:٤٤٣"),
        *("example.org:4" + "4" * 5000, "a%20b:443", "user@example.org:443"),
    ],
)
def test_what_is_no_authority_is_refused(text: str) -> None:
    """The target of CONNECT is a host and a port."""
    with pytest.raises(InvalidRequest):
        parse_authority(text)


@pytest.mark.parametrize(
    "line", [b"", b"GET /", b"CONNECT  a:443 HTTP/1.1", b"GET / HTTP/2", b"\xff / HTTP/1.1"]
)
def test_what_is_no_request_line_is_refused(line: bytes) -> None:
    """Only HTTP/1 is answered."""
    with pytest.raises(InvalidRequest):
        parse_head(line + b"\r\n\r\n")


@pytest.mark.parametrize("provider", ["host"])
def test_the_lists_of_a_record_are_checked(provider: str) -> None:
    """Each wrong entry is named with its place; a right list has no problem."""
    network = {"mode": "restricted", "allowDomains": ["a.org", "https://b.org"], "allowCidrs": ["1.0.0.0/33"]}
    found = problems(
        SandboxConfig.model_validate({"provider": provider, "network": network}), built_in()[provider]
    )
    assert [one.pointer for one in found] == ["/network/allowDomains/1", "/network/allowCidrs/0"]
    network = {"mode": "restricted", "allowDomains": ["a.org"], "allowCidrs": ["1.0.0.0/24"]}
    assert not problems(SandboxConfig.model_validate({"network": network}), built_in()[provider])
