"""M3 and M4: missing, nearly right, repeated, early and late signatures and blank secrets are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import SecretStr, ValidationError

from channels.discord.receive.interactions import is_signed as is_signed_by_discord
from channels.github.simulator.rest import private_key
from channels.port import WebhookRequest
from channels.registry import built_in
from channels.slack.receive.signature import is_signed as is_signed_by_slack
from channels.slack.simulator.outgoing import signature_headers
from gateway.files.signed_links import SignedLinks
from signature_cases import BODY, DISCORD, NOW, PUBLIC, SECRET, SIGNATURE_CASES

ROOT = Path(__file__).parents[2]
LINKS = SignedLinks(keys=(b"k" * 32,))
ALL = pytest.mark.parametrize("name", sorted(SIGNATURE_CASES))


@ALL
def test_m4_the_right_signature_passes(name: str) -> None:
    """A rightly signed post is accepted; otherwise the other vectors would prove nothing."""
    check, headers, _ = SIGNATURE_CASES[name]
    assert check(headers(), BODY)


@ALL
def test_m4_every_flipped_bit_of_the_body_is_seen(name: str) -> None:
    """No bit of the body can be changed, nothing put before or after it, and it cannot be left out."""
    check, headers, _ = SIGNATURE_CASES[name]
    for place in range(len(BODY)):
        for bit in range(8):
            changed = bytearray(BODY)
            changed[place] ^= 1 << bit
            assert not check(headers(), bytes(changed))
    for other in (b"", BODY + b"\n", b" " + BODY, BODY[:-1], BODY * 2):
        assert not check(headers(), other)


@ALL
def test_m4_every_changed_letter_of_a_header_is_seen(name: str) -> None:
    """No letter of the signature, the time or the id can be another, be missing or be there twice."""
    check, headers, _ = SIGNATURE_CASES[name]
    right = headers()
    for header, value in right.items():
        for place, letter in enumerate(value):
            for other in ("", letter * 2, chr(ord(letter) ^ 1), "\x00", "é"):
                changed = value[:place] + other + value[place + 1 :]
                assert not check({**right, header: changed}, BODY), (header, place, other)


@ALL
def test_m4_another_spelling_of_a_signature_opens_nothing_more(name: str) -> None:
    """Re-encoded, padded, doubled or joined signatures are refused; at most their hex may be upper-case."""
    check, headers, header = SIGNATURE_CASES[name]
    right = headers()
    value = right[header]
    alphabets = value.translate(str.maketrans("+/", "-_")), value.rstrip("="), value + "=", f"{value}=="
    joined = f"{value},{value}", f"{value}, x", f"{value};", f"{value}\n", f"{value}\x00", f"0x{value}"
    raw = base64.b64encode(value.encode()).decode(), value.encode().hex(), f"sha256={value}", value[::-1]
    for spelt in {*alphabets, *joined, *raw, "", "v0=", "v1,", "null"} - {value}:
        assert not check({**right, header: spelt}, BODY), spelt
    for missing in right:
        assert not check({one: text for one, text in right.items() if one != missing}, BODY)


@pytest.mark.parametrize("name", ["slack", "webhooks"])
@pytest.mark.parametrize(
    ("seconds", "fits"), [(-301, False), (-299, True), (0, True), (299, True), (301, False)]
)
def test_m4_the_window_is_five_minutes_both_ways(name: str, seconds: int, fits: bool) -> None:
    """A post of 299 seconds ago or ahead is accepted, one of 301 seconds is not."""
    check, headers, _ = SIGNATURE_CASES[name]
    assert check(headers(NOW + timedelta(seconds=seconds)), BODY) is fits


TIMED = pytest.mark.parametrize("name", ["slack", "discord", "webhooks"])
"""The kinds of signatures that also sign a time."""


@pytest.mark.parametrize("shown", ["", " ", "1" * 5000, "-1", "1.5", "nan", "1e9", "\u0661", "0x10", "None"])
@TIMED
def test_m4_a_time_that_is_none_is_refused_even_if_it_is_signed(name: str, shown: str) -> None:
    """A signature over a nonsensical time opens nothing and breaks nothing."""
    check, headers, header = SIGNATURE_CASES[name]
    right = headers()
    stamp = next(one for one in right if one.endswith("timestamp"))
    raw = shown.encode()
    made = {
        "slack": f"v0={hmac.new(SECRET.encode(), b'v0:' + raw + b':' + BODY, hashlib.sha256).hexdigest()}",
        "discord": "" if shown == "1" * 20 else DISCORD.sign(raw + BODY).hex(),
        "webhooks": right[header],
    }[name]
    assert not check({**right, stamp: shown, header: made}, BODY)


@ALL
@given(
    shown=some.lists(some.text(max_size=150) | some.just("1767312000"), min_size=3, max_size=3),
    body=some.binary(max_size=80),
)
def test_m4_garbage_is_a_no_and_never_an_accident(name: str, shown: list[str], body: bytes) -> None:
    """Any other headers and body are refused."""
    check, headers, _ = SIGNATURE_CASES[name]
    assert not check(dict(zip(headers(), shown, strict=False)), body)


def test_m4_a_links_signature_is_of_its_file_and_time() -> None:
    """A link to a file opens no other file and no other time; none of its letters can be another."""
    url = LINKS.create("fil_1", "a.txt", expires=NOW + timedelta(hours=1))
    assert LINKS.parse_url(url, now=NOW) == "fil_1"
    assert LINKS.parse_url(url, now=NOW + timedelta(hours=1)) is None
    _, _, query = url.partition("?")
    expires, _, mark = query.partition("&")
    moment, shown = expires.partition("=")[2], mark.partition("=")[2]
    assert not LINKS.is_valid("fil_2", moment, shown, now=NOW)
    assert not LINKS.is_valid("fil_1", str(int(moment) + 1), shown, now=NOW)
    for place, letter in enumerate(shown):
        other = "A" if letter != "A" else "B"
        changed = shown[:place] + other + shown[place + 1 :]
        assert not LINKS.is_valid("fil_1", moment, changed, now=NOW)
    for spelt in ("", shown + "=", shown[:-1], shown * 2, "\ud800", "é"):
        assert not LINKS.is_valid("fil_1", moment, spelt, now=NOW)


MINIMAL: dict[str, list[dict[str, Any]]] = {
    "telegram": [
        {"token": "123456:ABC-abc"},
        {"token": "123456:ABC-abc", "mode": "webhook", "webhook_secret": "x" * 20},
    ],
    "slack": [
        {"bot_token": "xoxb-1-a", "app_token": "xapp-1-a"},
        {"bot_token": "xoxb-1-a", "mode": "http", "signing_secret": "0" * 32},
    ],
    "discord": [
        {"token": "MTIz.abc.def-ghi"},
        {"token": "MTIz.abc.def-ghi", "mode": "interactions", "public_key": PUBLIC},
    ],
    "github": [
        {"app_id": "1", "private_key": private_key("app"), "webhook_secret": "s" * 20},
        {"app_id": "1", "private_key": private_key("app"), "mode": "polling"},
    ],
    "pancake": [{"page_id": "1", "page_access_token": "t" * 20}],
    "zalo": [
        {"token": "4242:abc"},
        {"token": "4242:abc", "mode": "webhook", "webhook_secret": "s" * 20},
        {"platform": "oa", "app_id": "1", "oa_secret": "s" * 20, "access_token": "a" * 20},
    ],
}
"""For each installed channel what it needs in each of its modes, and no more."""


def _is_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(_is_secret(inner) for inner in get_args(annotation))


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0", None])
@pytest.mark.parametrize("kind", sorted(built_in()))
def test_m3_no_channel_takes_a_blank_secret(kind: str, blank: str | None) -> None:
    """In each mode every secret and the public key, blank or left out where needed, stop the channel."""
    model = built_in()[kind].settings
    for right in MINIMAL[kind]:
        model.model_validate(right)
        for name in right.keys() - {"mode"}:
            with pytest.raises(ValidationError):
                model.model_validate({**right, name: blank})
    if blank is not None:
        for name, about in model.model_fields.items():
            if _is_secret(about.annotation):
                with pytest.raises(ValidationError):
                    model.model_validate({**MINIMAL[kind][0], name: blank})


def test_m3_an_empty_key_verifies_nothing() -> None:
    """Even what was signed with an empty secret is refused by a verifier that holds an empty secret."""
    for blank in ("", " ", "\t"):
        made = signature_headers(blank, BODY, "application/json", now=NOW.timestamp())
        assert not is_signed_by_slack(blank, made, BODY, now=NOW.timestamp())
    signed = WebhookRequest(headers=SIGNATURE_CASES["discord"][1](), body=BODY)
    for key in ("", "00" * 32, "zz", PUBLIC[:-2]):
        assert not is_signed_by_discord(signed, key)
