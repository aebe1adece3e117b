"""M8: which URLs may be called: no trick reaches an address that is not public."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from delivery.fair_gate import working_for
from delivery.webhooks.egress import Egress, EgressResponse, fair_resolver
from egress.addresses import is_local, is_public, parse_networks
from egress.policy import EgressPolicy, EgressRefused
from webhook_receiver import WebhookReceiver, respond, webhook_receiver

BLOCKED_ADDRESSES = re.split(
    r"\s+",
    """0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.0.0.53
    127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255
    192.0.0.1 192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 192.168.255.255
    192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1
    ::ffff:169.254.169.254 0:0:0:0:0:ffff:7f00:1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
    64:ff9b::10.0.0.1 64:ff9b:1::7f00:1 100::1 2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1
    2001:db8::1 2002:7f00:1::1 2002:a9fe:a9fe::1 2002:808:808::1 2620:4f:8000::1 3fff::1 4000::1 5f00::1
    fc00::1 fd00:ec2::254 fe80::1 fe80::1%lo fec0::1 ff02::1 ff0e::1 2a00:1450::5efe:7f00:1
    2a00:1450::200:5efe:a00:1""",
)

PUBLIC_ADDRESSES = re.split(
    r"\s+",
    """1.1.1.1 8.8.8.8 9.9.9.9 93.184.215.14 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1
    192.88.98.1 198.17.0.1 198.20.0.1 223.255.255.255 2001:4860:4860::8888 2606:4700::1111
    2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::808:808""",
)

URL_FORMS = [
    "http://127.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://017700000001:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://１２７.０.０.１:{port}/",
    "http://127。0。0。1:{port}/",
    "http://%31%32%37.0.0.1:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:ffff:7f00:1]:{port}/",
    "http://[::ffff:127.0.0.1%25lo]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST.:{port}/",
    "http://example.com@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@example.com/",
    "http://127.0.0.1:{port}\\@example.com/",
    "http://ｌocalhost:{port}/",
    "ftp://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "//127.0.0.1:{port}/",
    "http:///",
    "http://127.0.0.1:{port}/\r\nHost: x",
    "HTTP://127.0.0.1:{port}/",
    "",
    "http://" + "a" * 5000,
    "http://[::1",
    "http://127.0.0.1:99999999/",
]


class RebindingResolver(AbstractResolver):
    """A name server that answers with a public address first and with loopback ever after."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Answer with every address."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=0,
            )
            for address in self.addresses
        ]

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
async def target() -> AsyncIterator[WebhookReceiver]:
    """A receiver on loopback that must never be reached."""
    async with webhook_receiver() as receiver:
        yield receiver


def at_port(port: int) -> EgressPolicy:
    """Return rules whose usual http port is the target's, so that only the address can be wrong."""
    return EgressPolicy(ports=frozenset({("http", port), ("https", 443)}))


async def post(egress: Egress, url: str, *, trusted: bool = False) -> EgressResponse:
    """POST nothing much."""
    return await egress.post(url, headers={}, body=b"{}", trusted=trusted)


@pytest.mark.parametrize("text", BLOCKED_ADDRESSES)
def test_addresses_that_are_not_public_are_closed(text: str) -> None:
    """Private, local, reserved, documentation, metadata and wrapped addresses are not public."""
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC_ADDRESSES)
def test_public_addresses_are_open(text: str) -> None:
    """Addresses just beside the closed networks are public."""
    assert is_public(ip_address(text))


@given(address=st.ip_addresses(v=4))
def test_wrapping_an_address_does_not_open_it(address: object) -> None:
    """An IPv4 address is judged alike in every IPv6 wrapping that a connection unwraps, else refused."""
    plain = is_public(ip_address(str(address)))
    assert is_public(ip_address(f"::ffff:{address}")) == plain
    assert is_public(ip_address(f"64:ff9b::{address}")) == plain
    assert not is_public(ip_address(f"::{address}"))


def test_our_own_addresses_are_known() -> None:
    """Loopback is this machine's own; a documentation address is not."""
    assert is_local(ip_address("127.0.0.1"))
    assert not is_local(ip_address("192.0.2.1"))


OWN_ADDRESS_PROGRAM = """
import ctypes, fcntl, socket, struct, sys
from egress.policy import EgressPolicy, EgressRefused, EgressScope

CLONE_NEWNET, SIOCSIFADDR, SIOCSIFFLAGS, UP = 0x40000000, 0x8916, 0x8914, 1
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNET):
    sys.exit("skip")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton("8.8.8.8"))
    fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16s16s8x", b"lo", address))
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", UP))
EgressPolicy().check_host("1.1.1.1", EgressScope.PUBLIC)
try:
    EgressPolicy().check_host("8.8.8.8", EgressScope.PUBLIC)
except EgressRefused as refused:
    print(refused.why)
"""


def test_a_public_address_of_this_machine_is_refused() -> None:
    """An address that is public for others leads to this machine's own services, so no call goes there."""
    done = subprocess.run(
        [sys.executable, "-c", OWN_ADDRESS_PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    if done.stderr.strip() == "skip":
        pytest.skip("a network namespace of its own is not allowed here")
    assert done.returncode == 0, done.stderr
    assert "this machine's own" in done.stdout


@pytest.mark.parametrize("form", URL_FORMS)
async def test_no_form_of_a_url_reaches_loopback(form: str, target: WebhookReceiver) -> None:
    """However loopback is spelt, the call is refused or fails, and nothing connects."""
    async with Egress(at_port(target.port), total_seconds=5) as egress:
        with pytest.raises((EgressRefused, aiohttp.ClientError, OSError)):
            await post(egress, form.format(port=target.port))
    assert target.connections == 0


@pytest.mark.parametrize("address", [one for one in BLOCKED_ADDRESSES if "%" not in one])
async def test_no_name_reaches_a_closed_address(address: str) -> None:
    """A name that resolves to a closed address is refused when the connection is made."""
    async with Egress(resolver=RebindingResolver(address)) as egress:
        with pytest.raises(EgressRefused):
            await post(egress, "http://receiver.example/")


async def test_a_rebinding_name_reaches_nothing(target: WebhookReceiver) -> None:
    """A name that is several closed addresses at once is refused for every one of them."""
    async with Egress(
        at_port(target.port), resolver=RebindingResolver("10.0.0.1", "::1", "127.0.0.1")
    ) as egress:
        for _ in range(3):
            with pytest.raises(EgressRefused):
                await post(egress, f"http://receiver.example:{target.port}/")
    assert target.connections == 0


async def test_redirects_are_not_followed(target: WebhookReceiver) -> None:
    """A permitted receiver that redirects to loopback is answered by its own status, and that is all."""
    async with webhook_receiver(respond(302, Location=target.url)) as permitted, Egress() as egress:
        assert (await post(egress, permitted.url, trusted=True)).status == 302
    assert target.connections == 0


@pytest.fixture
def proxy_environment(target: WebhookReceiver) -> Iterator[None]:
    """The environment names the target as the proxy for everything."""
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, f"http://127.0.0.1:{target.port}"))
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.mark.usefixtures("proxy_environment")
async def test_proxies_of_the_environment_are_not_used(target: WebhookReceiver) -> None:
    """A proxy in the environment sees none of our calls."""
    async with webhook_receiver() as permitted, Egress() as egress:
        assert (await post(egress, permitted.url, trusted=True)).status == 200
        with pytest.raises(EgressRefused):
            await post(egress, "http://127.0.0.1/")
    assert target.connections == 0


async def test_allowed_networks_are_reached_at_any_port() -> None:
    """An operator who allows loopback gets plain http at any port there."""
    async with (
        webhook_receiver() as receiver,
        Egress(EgressPolicy.parse("10.0.0.0/8, 127.0.0.0/8")) as egress,
    ):
        assert (await post(egress, receiver.url)).status == 200
        assert (await post(egress, f"http://localhost:{receiver.port}/")).status == 200


async def test_allowing_one_network_opens_no_other(target: WebhookReceiver) -> None:
    """With some network allowed, other addresses stay closed, and other ports too."""
    async with Egress(EgressPolicy.parse("10.0.0.0/8,fd00::/8")) as egress:
        for url in (target.url, "http://8.8.8.8:8080/", "https://8.8.8.8:80/", "http://[::1]/"):
            with pytest.raises(EgressRefused):
                await post(egress, url)
    assert target.connections == 0


async def test_a_trusted_connection_is_not_lent_to_others() -> None:
    """A kept-alive connection of the operator's own URL does not carry an account's call."""
    async with webhook_receiver() as receiver, Egress(at_port(receiver.port)) as egress:
        assert (await post(egress, receiver.url, trusted=True)).status == 200
        with pytest.raises(EgressRefused):
            await post(egress, receiver.url)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com:8080/",
        "https://example.com:80/",
        "http://example.com:443/",
        "https://user:secret@example.com/",
        "ftp://example.com/",
        "https://",
        "nonsense",
        "https://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
    ],
)
def test_what_is_wrong_by_itself_is_said_at_once(url: str) -> None:
    """A URL that can never be called is refused when it is examined, without repeating secrets in it."""
    with pytest.raises(EgressRefused) as caught:
        EgressPolicy().check_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://example.com/", "http://example.com/a?b=c", "https://bücher.example/"]
)
def test_ordinary_urls_pass_examination(url: str) -> None:
    """Public names at the usual ports pass; their addresses are judged when they are connected to."""
    EgressPolicy().check_url(url)


@given(url=st.text(max_size=60) | st.text(max_size=40).map("http://{}".format))
def test_examination_refuses_and_never_fails(url: str) -> None:
    """Any text is examined to a URL or a refusal."""
    with suppress(EgressRefused):
        EgressPolicy().check_url(url)


@pytest.mark.parametrize("networks", ["10.0.0.0/33", "everything", "10.0.0.1/8"])
def test_a_wrong_network_is_named(networks: str) -> None:
    """A CIDR that is none is refused with its text."""
    with pytest.raises(ValueError, match=networks.split("/", maxsplit=1)[0]):
        parse_networks([networks])


async def test_slow_name_servers_of_one_account_leave_threads_to_others() -> None:
    """An account whose lookups all hang holds three of four threads, also after its callers gave up."""
    answered, started = threading.Event(), list[str]()

    def look_up(host: str, port: int, *_kind: int) -> list[Any]:
        started.append(host)
        if host.startswith("slow"):
            answered.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    resolver = fair_resolver(threads=4, look_up=look_up)
    try:
        with working_for("busy"):
            lookups = [asyncio.create_task(resolver.resolve(f"slow{number}.example")) for number in range(20)]
        async with asyncio.timeout(60):
            while len(started) < 3:  # noqa: ASYNC110 - other threads append
                await asyncio.sleep(0.01)
            for lookup in lookups[:3]:
                lookup.cancel()
            with working_for("quiet"):
                found = await resolver.resolve("fast.example", 443)
        assert found[0]["host"] == "127.0.0.1"
        assert started == ["slow0.example", "slow1.example", "slow2.example", "fast.example"]
        answered.set()
        async with asyncio.timeout(60):
            assert len(await asyncio.gather(*lookups[3:])) == 17
    finally:
        answered.set()
        await resolver.close()
