"""Who may sign in: the claims of an ID token, the tables of the settings, and the secrets of an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load
from gateway.config.settings import InvalidSettings
from gateway.config.sign_in_settings import OidcSettings
from gateway.sign_in import attempt
from gateway.sign_in.access import access_of, claim_values, shown_name

KEYS = (b"first" * 8, b"former" * 8)
WORKING = """
public_url = "https://bots.example.org"
[oidc]
issuer = "https://login.example.org/"
client_id = "dovecote"
[oidc.access."a group"]
scopes = "read,chat"
"""


def settings(**tables: Any) -> OidcSettings:
    """Return settings with these access tables."""
    return OidcSettings.model_validate({"access": tables})


def test_the_first_table_names_the_account_and_scopes_are_joined() -> None:
    """Tables of other accounts add nothing; a claim that fits no table gives nothing."""
    oidc = settings(
        ops={"account": "one", "scopes": ["admin"]},
        all={"account": "two", "scopes": ["jobs"]},
        staff={"account": "one", "scopes": "read,admin"},
    )
    granted = access_of(oidc, {"groups": ["staff", "all", "ops"]})
    assert granted is not None
    assert (granted.account, granted.scopes) == ("one", ("read", "admin"))
    assert access_of(oidc, {"groups": ["Ops"]}) is None
    assert access_of(oidc, {}) is None


@pytest.mark.parametrize(
    ("claims", "name", "values"),
    [
        ({"groups": ["a", 1, None, {"b": 1}]}, "groups", {"a"}),
        ({"role": "a"}, "role", {"a"}),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"https://example.org/roles": ["a"]}, "https://example.org/roles", {"a"}),
        ({"a": {"b": "nested"}, "a.b": "whole"}, "a.b", {"whole"}),
        ({"realm_access": "text"}, "realm_access.roles", set()),
        ({"groups": {"a": True}}, "groups", set()),
        ({"email": "ann@example.org"}, "email", set()),
        ({"email": "ann@example.org", "email_verified": "true"}, "email", set()),
        ({"email": "ann@example.org", "email_verified": True}, "email", {"ann@example.org"}),
    ],
)
def test_the_texts_of_a_claim(claims: dict[str, Any], name: str, values: set[str]) -> None:
    """Lists and texts count, by the whole name or along its dots; an e-mail address must be verified."""
    assert claim_values(claims, name) == values


def test_a_person_is_shown_by_a_printable_name() -> None:
    """A name with control characters is passed over, and a long one is cut."""
    assert shown_name({"preferred_username": "an\nn", "name": "Ann", "sub": "1"}) == "Ann"
    assert shown_name({"sub": "x" * 255}) == "x" * 120
    assert shown_name({"sub": "\x00"}) == "a person"


def test_an_attempt_is_resumed_with_its_own_state_alone() -> None:
    """Another state, a changed cookie, a cookie of the future and an old one are refused."""
    begun = attempt.begin(KEYS, now=1000.5)
    found = attempt.resume(KEYS, begun.cookie, begun.state, now=1100)
    assert found is not None
    assert (found.nonce, found.code_verifier) == (begun.nonce, begun.code_verifier)
    assert 43 <= len(begun.code_verifier) <= 128
    for cookie, state, now in (
        (begun.cookie, begun.nonce, 1100.0),
        (begun.cookie, "\ud800", 1100.0),
        (begun.cookie.replace("1000.", "1001."), begun.state, 1100.0),
        (begun.cookie, begun.state, 1000 + attempt.LIFETIME + 1.0),
        (begun.cookie, begun.state, 999.0),
        ("", "", 1100.0),
        (f"{'9' * 400}.{'a' * 43}", begun.state, 1100.0),
    ):
        assert attempt.resume(KEYS, cookie, state, now=now) is None


def test_an_attempt_outlasts_a_rotation_of_the_secret_keys() -> None:
    """What was begun under the former key is finished under it."""
    begun = attempt.begin(KEYS[1:], now=1000)
    found = attempt.resume(KEYS, begun.cookie, begun.state, now=1001)
    assert found is not None
    assert found.code_verifier == begun.code_verifier
    assert attempt.resume(KEYS[:1], begun.cookie, begun.state, now=1001) is None


def test_a_whole_table_is_loaded_as_it_is_written(tmp_path: Path) -> None:
    """The slash at the issuer's end stays, and a group may have a space."""
    (tmp_path / "dovecote.toml").write_text(WORKING)
    oidc = load(env={}, directory=tmp_path).oidc
    assert oidc.issuer == "https://login.example.org/"
    assert oidc.access["a group"].scopes == ("read", "chat")


@pytest.mark.parametrize(
    ("removed", "added", "words"),
    [
        ('public_url = "https://bots.example.org"', "", "no public URL"),
        ('client_id = "dovecote"', "", "the client has no id"),
        ('issuer = "https://login.example.org/"', "", "no identity provider is named"),
        ("https://login.example.org/", "http://login.example.org", "in the clear"),
        ("https://login.example.org/", "http://127.example.org", "in the clear"),
        ('[oidc.access."a group"]\nscopes = "read,chat"', "", "no claim value grants access"),
        ('client_id = "dovecote"', 'client_id = "dovecote"\nscope = "profile"', "openid is missing"),
        ('"read,chat"', '"read,root"', "oidc.access"),
    ],
)
def test_half_a_sign_in_is_refused(tmp_path: Path, removed: str, added: str, words: str) -> None:
    """What would let no person in, or send tokens in the clear, is named with a remedy."""
    assert removed in WORKING
    (tmp_path / "dovecote.toml").write_text(WORKING.replace(removed, added))
    with pytest.raises(InvalidSettings, match=words):
        load(env={}, directory=tmp_path)
