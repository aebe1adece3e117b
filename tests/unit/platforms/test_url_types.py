"""URLs of settings and records have one normal form, and odd spellings of a host are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.registry import installed, plugin
from egress.urls import CallbackUrl, EndpointUrl, Origin, SocketUrl, is_same_origin, origin_of


@pytest.mark.parametrize(
    ("given_text", "normal"),
    [
        ("HTTPS://Bots.Example.ORG:443/", "https://bots.example.org"),
        ("http://bots.example.org:80/a/", "http://bots.example.org/a"),
        ("https://bots.example.org.:8443/A?", "https://bots.example.org:8443/A"),
        ("http://[::FFFF:127.0.0.1]:80", "http://[::ffff:127.0.0.1]"),
        ("http://１２７.０.０.１/", "http://127.0.0.1"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_a_url_has_one_normal_form(given_text: str, normal: str) -> None:
    """Case, default ports, a last dot, a last slash and international spellings make no difference."""
    assert EndpointUrl.parse(given_text) == normal
    assert EndpointUrl.parse(normal) == normal


@pytest.mark.parametrize(
    "text",
    [
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://user@bots.example.org/",
        "http://:@bots.example.org/",
        "http://bots.example.org:0/",
        "http://bots.example.org:99999/",
        "http://[::1%25lo]/",
        "http://%31%32%37.0.0.1/",
        "http://bots.example.org\\@127.0.0.1/",
        "http://bots.example.org/a b",
        "http://bots.example.org/\r\nHost: x",
        "http://bots..example.org/",
        "http://bots.example.org/?a=b",
        "http://bots.example.org/#a",
        "ws://bots.example.org/",
        "ftp://bots.example.org/",
        "//bots.example.org/",
        "http://",
        "",
        "http://" + "a" * 3000,
    ],
)
def test_an_odd_url_is_refused(text: str) -> None:
    """What two parsers may read differently is no URL of a setting."""
    with pytest.raises(ValueError, match=r"."):
        EndpointUrl.parse(text)


@given(text=st.text(max_size=60) | st.text(max_size=40).map("http://{}".format))
def test_parsing_is_stable(text: str) -> None:
    """Any text is refused with a ValueError, or has a normal form that is its own normal form."""
    try:
        parsed = EndpointUrl.parse(text)
    except ValueError:
        return
    assert EndpointUrl.parse(parsed) == parsed
    assert parsed.origin.port > 0


def test_a_callback_keeps_its_path_and_query() -> None:
    """A receiver may sign or route by the exact path, so only scheme and host are normalised."""
    assert CallbackUrl.parse("HTTPS://Hooks.example/A/?b=%2F&c=") == "https://hooks.example/A/?b=%2F&c="
    assert SocketUrl.parse("WSS://Gateway.example:443/") == "wss://gateway.example/"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("HTTPS://slack.com:443/x", True),
        ("wss://slack.com/y", True),
        ("https://slack.com:8443/", False),
        ("http://slack.com/", False),
        ("https://slack.com@evil.example/", False),
        ("https://slack.com.evil.example/", False),
        ("nonsense", False),
    ],
)
def test_origins_compare_scheme_host_and_port(other: str, same: bool) -> None:
    """A key that is bound to an origin goes to no other port, scheme or host."""
    assert is_same_origin(other, "https://slack.com/api/") is same
    assert origin_of("https://slack.com/api/") == Origin("https", "slack.com", 443)


@pytest.mark.parametrize("kind", sorted(installed()))
def test_every_url_field_of_a_channel_has_the_type(kind: str) -> None:
    """A field that holds a URL is parsed once, by the type, in each adapter."""
    for name, field in plugin(kind).settings.model_fields.items():
        if name.endswith("url"):
            assert _has_url_type(field.annotation), name


def _has_url_type(annotation: Any) -> bool:
    inner = getattr(annotation, "__args__", ())
    return (isinstance(annotation, type) and issubclass(annotation, EndpointUrl)) or any(
        map(_has_url_type, inner)
    )
