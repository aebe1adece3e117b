"""Signed links: ours hold until they expire, all others never do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounts.vault import Vault
from gateway.files.signed_links import PURPOSE, SignedLinks

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LINKS = SignedLinks(keys=Vault(["k" * 40]).keys_for(PURPOSE), public_url="https://doves.example/bot")


def parts(url: str) -> tuple[str, str]:
    """Return what a link is signed with."""
    query = parse_qs(urlsplit(url).query)
    return query["expires"][0], query["signature"][0]


def test_a_link_holds_until_it_expires() -> None:
    """The moment it names is the last."""
    expires, signature = parts(LINKS.create("fil_1", "a b.txt", expires=NOW + timedelta(hours=1)))
    assert LINKS.is_valid("fil_1", expires, signature, now=NOW)
    assert not LINKS.is_valid("fil_1", expires, signature, now=NOW + timedelta(hours=1))
    assert not LINKS.is_valid("fil_2", expires, signature, now=NOW)
    assert not LINKS.is_valid("fil_1", str(int(expires) + 1), signature, now=NOW)


@given(st.text(max_size=60), st.text(max_size=60))
def test_nothing_else_is_valid(expires: str, signature: str) -> None:
    """Garbage is refused, and never an error."""
    assert not LINKS.is_valid("fil_1", expires, signature, now=NOW)


def test_links_outlive_a_change_of_keys() -> None:
    """The first key signs; a link of an older key is valid while that key is in the ring."""
    url = LINKS.create("fil_1", "x", expires=NOW + timedelta(days=1))
    rotated = SignedLinks(keys=Vault(["n" * 40, "k" * 40]).keys_for(PURPOSE), public_url=LINKS.public_url)
    changed = SignedLinks(keys=Vault(["n" * 40]).keys_for(PURPOSE), public_url=LINKS.public_url)
    assert rotated.parse_url(url, now=NOW) == "fil_1"
    assert changed.parse_url(url, now=NOW) is None
    assert (
        changed.parse_url(rotated.create("fil_1", "x", expires=NOW + timedelta(days=1)), now=NOW) == "fil_1"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("doves.example", "evil.example"),
        lambda url: url.replace("https:", "http:"),
        lambda url: url.replace("/bot/files/", "/bot/other/"),
        lambda url: url.replace("/files/fil_1/", "/files/fil_2/"),
        lambda url: url.replace("/files/", "/files/../files/"),
        lambda url: url.partition("?")[0],
        lambda _url: "https://[broken",
        lambda _url: "",
    ],
)
def test_only_our_own_address_names_a_file(change: object) -> None:
    """Another host, scheme or path is refused, whatever its signature."""
    url = LINKS.create("fil_1", "x", expires=NOW + timedelta(days=1))
    assert LINKS.parse_url(url, now=NOW) == "fil_1"
    assert LINKS.parse_url(change(url), now=NOW) is None  # type: ignore[operator]


def test_a_path_without_host_is_ours_too() -> None:
    """Without a public address links are paths, and paths are accepted."""
    local = SignedLinks(keys=LINKS.keys)
    url = local.create("fil_1", "ü/x.txt", expires=NOW + timedelta(days=1))
    assert url.startswith("/files/fil_1/%C3%BC%2Fx.txt?expires=")
    assert local.parse_url(url, now=NOW) == "fil_1"


def test_no_key_shows_itself() -> None:
    """Neither links nor the object that creates them show the signing key."""
    assert "kkkk" not in repr(LINKS)
    assert LINKS.keys[0].hex() not in repr(LINKS)
