"""M6: addresses are one peer however they are written, and failures lock them out for a while."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.web.http.auth_lockout import FailureLockout, client_address, normalize_address

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("0:0:0:0:0:ffff:7f00:1", "127.0.0.1"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:0db8:0:0:ffff::2", "2001:db8::/64"),
        ("", ""),
        ("nonsense", "nonsense"),
    ],
)
def test_one_peer_has_one_spelling(written: str, meant: str) -> None:
    """Mapped IPv4 is IPv4, and all of an IPv6 subscriber's addresses are one."""
    assert normalize_address(written) == meant


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.1", ["198.51.100.7"], "203.0.113.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::/64"),
        ("fd00::1", ["198.51.100.7"], "198.51.100.7"),
        ("fd00::1", ["6.6.6.6, 198.51.100.7, fd00::2"], "198.51.100.7"),
        ("10.0.0.1", ["nonsense"], "nonsense"),
    ],
)
def test_forwarded_addresses_are_believed_from_proxies_only(
    peer: str, forwarded: list[str], client: str
) -> None:
    """A client cannot choose its own address: the nearest one that no proxy of ours wrote counts."""
    assert client_address(peer, forwarded, PROXIES) == client


def test_an_address_is_locked_at_the_limit_and_free_after_the_window() -> None:
    """The limit locks, the others are free, and the window's end unlocks."""
    now = [0.0]
    limiter = FailureLockout(failures=3, window=60, clock=lambda: now[0])
    for _ in range(3):
        assert limiter.locked_for("a") == 0
        limiter.record_failure("a")
    assert limiter.locked_for("a") == 60
    assert limiter.locked_for("b") == 0
    now[0] = 60.0
    assert limiter.locked_for("a") == 0
    limiter.record_failure("a")
    assert limiter.locked_for("a") == 0


def test_a_proven_key_is_known_at_its_own_address_only() -> None:
    """A key that worked from one address proves nothing for another."""
    limiter = FailureLockout()
    limiter.record_success("a", b"digest")
    assert limiter.has_succeeded("a", b"digest")
    assert not limiter.has_succeeded("b", b"digest")
    assert not limiter.has_succeeded("a", b"other")


def test_a_flood_of_addresses_is_discarded_oldest_first() -> None:
    """Memory is bounded under any input."""
    limiter = FailureLockout(failures=1)
    for number in range(10_001):
        limiter.record_failure(str(number))
    assert limiter.locked_for("0") == 0
    assert limiter.locked_for("10000") > 0
