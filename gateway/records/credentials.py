"""The config of a credential: a host, what is added to requests to it, and the agents that may use it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, StrictStr

from egress.proxy.rules import parse_domain
from egress.typed_model import TypedModel
from egress.urls import EndpointUrl, endpoint
from gateway.records.fields import Reference

EVERY_AGENT = "*"
"""In `agents`: every agent of the account."""

CredentialKind = Literal["header", "basic", "oauth", "github_app"]

_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\Z")
_RESERVED_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "expect", "host", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)


def _credential_host(text: str) -> str:
    host = parse_domain(text)
    if host.startswith("*"):
        raise ValueError("must be one host, without a wildcard")
    return host


def _free_header(name: str) -> str:
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith("proxy-"):
        raise ValueError(f"the header {name} belongs to the connection: choose another one")
    return name


def _visible(secret: SecretStr) -> SecretStr:
    if not _HEADER_VALUE.match(secret.get_secret_value()):
        raise ValueError("must consist of visible ASCII characters, and must not be blank")
    return secret


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("must not be blank")
    return secret


def _no_colon(text: str) -> str:
    if ":" in text or not text.isprintable():
        raise ValueError("must not contain a colon or control characters")
    return text


VisibleSecret = Annotated[SecretStr, Field(max_length=8192), AfterValidator(_visible)]
TextSecret = Annotated[SecretStr, Field(max_length=16384), AfterValidator(_not_blank)]
_Id = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)]


class _CredentialSecret(TypedModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StaticHeader(_CredentialSecret):
    """A header with its value, such as an API key."""

    name: Annotated[
        StrictStr, Field(pattern=r"^[A-Za-z0-9-]+$", max_length=100), AfterValidator(_free_header)
    ] = "Authorization"
    value: VisibleSecret


class BasicLogin(_CredentialSecret):
    """A user name and a password or access token, such as for git over HTTPS."""

    username: Annotated[StrictStr, Field(max_length=200), AfterValidator(_no_colon)]
    password: TextSecret


class RefreshToken(_CredentialSecret):
    """A refresh token of OAuth 2.0, for which access tokens are fetched."""

    token_url: EndpointUrl
    client_id: Annotated[StrictStr, Field(min_length=1, max_length=500)]
    client_secret: TextSecret | None = None
    refresh_token: TextSecret
    scope: Annotated[StrictStr, Field(max_length=2000)] | None = None


class GitHubAppKey(_CredentialSecret):
    """The private key of a GitHub App, with which tokens of one installation are fetched."""

    app_id: _Id
    installation_id: _Id
    private_key: TextSecret
    api_url: EndpointUrl = endpoint("https://api.github.com")


SECRETS: Mapping[CredentialKind, type[_CredentialSecret]] = {
    "header": StaticHeader,
    "basic": BasicLogin,
    "oauth": RefreshToken,
    "github_app": GitHubAppKey,
}
"""The form of `secret` for each kind."""


class CredentialConfig(TypedModel):
    """A credential for requests of sandboxes to one host; `secret` has the form of its kind.

    For `header` a text is a bearer token; for `basic` a text is `user:password`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Annotated[StrictStr, AfterValidator(_credential_host)]
    kind: CredentialKind
    agents: Annotated[tuple[Reference, ...], Field(min_length=1, max_length=100)]
    secret: dict[str, Any] | SecretStr


def secret_fields(config: CredentialConfig) -> Mapping[str, Any]:
    """Return the fields of a secret, those of one that is given as a text too; raises ValueError."""
    if not isinstance(config.secret, SecretStr):
        return config.secret
    text = config.secret.get_secret_value()
    if config.kind == "header":
        return {"value": f"Bearer {text}"}
    if config.kind == "basic" and ":" in text:
        username, _, password = text.partition(":")
        return {"username": username, "password": password}
    fields = ", ".join(SECRETS[config.kind].model_fields)
    raise ValueError(f"must have the fields {fields} for kind {config.kind}")


def credential_urls(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pointers and URLs of a config to which the gateway connects for access tokens."""
    secret = config.get("secret")
    if isinstance(secret, Mapping):
        for name in ("token_url", "api_url"):
            url = secret.get(name)
            if url is not None:
                yield f"/secret/{name}", str(url)
