"""The config of a credential: what is stored, what is a secret, and what is refused, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from egress.proxy.signing import OutgoingRequest
from gateway.config.settings import masked
from gateway.environments.credential_headers import static_headers, token_headers
from gateway.records.credentials import BasicLogin, GitHubAppKey, StaticHeader, credential_urls
from gateway.records.errors import InvalidRecord
from gateway.records.kinds import validate

GOOD: dict[str, Any] = {
    "host": "Example.ORG.",
    "kind": "header",
    "secret": "canary",
    "agents": ["*", "coder"],
}


def test_a_text_is_a_bearer_token_or_a_login() -> None:
    """The short forms become the long ones; the host is normal, the agents are references."""
    checked = validate("credential", GOOD, below="")
    assert checked.secrets == {"/secret/value": "Bearer canary"}
    assert checked.config == {
        **GOOD,
        "host": "example.org",
        "secret": {"name": "Authorization", "value": "***"},
    }
    assert checked.references == (("/agents/1", "agent"),)
    login = validate("credential", {**GOOD, "kind": "basic", "secret": "ada:can:ary"}, below="")
    assert login.secrets == {"/secret/password": "can:ary"}
    assert login.config["secret"]["username"] == "ada"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"host": "*.example.org"}, "/host"),
        ({"host": "10.0.0.1"}, "/host"),
        ({"host": "https://example.org"}, "/host"),
        ({"kind": "password"}, "/kind"),
        ({"agents": []}, "/agents"),
        ({"more": 1}, "/more"),
        ({"secret": ""}, "/secret/value"),
        ({"secret": "a\r\nX-Other: b"}, "/secret/value"),
        ({"secret": {"name": "Host", "value": "x"}}, "/secret/name"),
        ({"secret": {"name": "X Y", "value": "x"}}, "/secret/name"),
        ({"secret": {"name": "X"}}, "/secret/value"),
        ({"kind": "basic", "secret": "no-colon"}, "/secret"),
        ({"kind": "basic", "secret": {"username": "a:b", "password": "x"}}, "/secret/username"),
        ({"kind": "oauth", "secret": "token"}, "/secret"),
        ({"kind": "oauth", "secret": {"client_id": "me"}}, "/secret/token_url"),
        ({"kind": "github_app", "secret": {"app_id": "1/2"}}, "/secret/app_id"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], pointer: str) -> None:
    """The problem has the place of the field, and never the secret."""
    with pytest.raises(InvalidRecord) as raised:
        validate("credential", {**GOOD, **change}, below="")
    assert pointer in [one.pointer for one in raised.value.problems]
    assert "canary" not in str([one.detail for one in raised.value.problems])


def test_the_gateways_connections_for_tokens_are_listed() -> None:
    """Both kinds that fetch tokens name the address, so that it is checked as every other one."""
    found = [*credential_urls({"secret": {"token_url": "http://10.0.0.1/", "api_url": "http://10.0.0.2/"}})]
    assert found == [("/secret/token_url", "http://10.0.0.1/"), ("/secret/api_url", "http://10.0.0.2/")]
    assert not [*credential_urls({"secret": "text"})]


def test_headers_of_each_kind() -> None:
    """A login is basic; a token of an app is a password for git alone."""
    assert static_headers(StaticHeader(name="X-Key", value="v")) == {"X-Key": "v"}  # type: ignore[arg-type]
    assert static_headers(BasicLogin(username="a", password="b")) == {"Authorization": "Basic YTpi"}  # type: ignore[arg-type]
    app = GitHubAppKey(app_id="1", installation_id="2", private_key="x")  # type: ignore[arg-type]
    for path, kind in (
        ("/o/r.git/info/refs?service=x", "Basic"),
        ("/repos", "Bearer"),
        ("/o/git-receive-pack", "Basic"),
    ):
        request = OutgoingRequest(host="github.com", method="GET", path=path)
        assert token_headers(app, "t", request)["Authorization"].startswith(f"{kind} ")


def test_a_declared_secret_is_masked_whatever_its_fields_are() -> None:
    """`config show` and messages about settings show no field of a secret."""
    secret = {"name": "X-Key", "value": "canary", "username": "canary"}
    shown = masked({"credentials": {"one": {"secret": secret}, "two": {"secret": "canary", "host": "a.org"}}})
    assert "canary" not in str(shown)
    assert "a.org" in str(shown)
