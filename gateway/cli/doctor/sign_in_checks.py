"""The checks of `dovecote doctor` of the identity provider with which people sign in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from gateway.cli.doctor.check import DoctorCheck, failed, passed

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.sign_in.provider import ProviderMetadata

SUBJECT = "sign-in"
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
_REFUSED = 400
"""Providers answer with this status or a higher one to an authorization request of an unknown client."""


def check_sign_in(settings: Settings) -> Iterator[DoctorCheck]:
    """Check the provider's metadata and keys, and that it knows the client with its redirect URI."""
    if settings.oidc.issuer is None or settings.public_url is None:
        return
    yield from asyncio.run(_collect(settings))


async def _collect(settings: Settings) -> list[DoctorCheck]:
    return [check async for check in _check_provider(settings)]


async def _check_provider(settings: Settings) -> AsyncIterator[DoctorCheck]:
    from egress.policy import EgressPolicy
    from gateway.sign_in.errors import SignInFailed
    from gateway.sign_in.fetching import ProviderConnection
    from gateway.sign_in.provider import METADATA_PATH, IdentityProvider

    issuer = str(settings.oidc.issuer)
    connection = ProviderConnection(issuer=issuer, policy=EgressPolicy(allow=settings.egress_allow))
    provider = IdentityProvider(connection)
    try:
        about = await provider.metadata()
    except SignInFailed as error:
        remedy = f"set oidc.issuer so that {issuer.rstrip('/')}{METADATA_PATH} answers with this issuer"
        yield failed(f"{SUBJECT}: issuer", str(error), remedy)
        return
    yield passed(f"{SUBJECT}: issuer", f"{issuer} answers")
    try:
        keys = await provider.signing_keys(fresh=True)
    except SignInFailed as error:
        yield failed(f"{SUBJECT}: keys", str(error), f"let {about.jwks_uri} answer to this machine")
    else:
        yield _check_keys(about.jwks_uri, [str(key.get("kty")) for key in keys])
    try:
        yield _check_client(settings, await connection.status_of(_authorization_url(settings, about)))
    except SignInFailed as error:
        remedy = "let this machine reach the provider's authorization endpoint, or ignore this"
        yield failed(f"{SUBJECT}: client", str(error), remedy)


def _check_keys(url: str, types: list[str]) -> DoctorCheck:
    usable = [one for one in types if one in _KEY_TYPES]
    if usable:
        return passed(f"{SUBJECT}: keys", f"{len(usable)} to verify ID tokens with")
    remedy = "let the provider sign ID tokens with RS256, ES256 or EdDSA"
    return failed(f"{SUBJECT}: keys", f"{url} publishes no public key", remedy)


def _redirect_uri(settings: Settings) -> str:
    from gateway.sign_in.oidc_sign_in import CALLBACK_PATH

    return f"{str(settings.public_url).rstrip('/')}{CALLBACK_PATH}"


def _authorization_url(settings: Settings, about: ProviderMetadata) -> str:
    """Return a request that shows no page: it signs no one in."""
    from yarl import URL

    parameters = {
        "response_type": "code",
        "client_id": settings.oidc.client_id or "",
        "redirect_uri": _redirect_uri(settings),
        "scope": settings.oidc.scope,
        "state": "doctor",
        "nonce": "doctor",
        "prompt": "none",
        "code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",  # of RFC 7636, appendix B
        "code_challenge_method": "S256",
    }
    return str(URL(about.authorization_endpoint).update_query(parameters))


def _check_client(settings: Settings, status: int) -> DoctorCheck:
    client, uri = settings.oidc.client_id, _redirect_uri(settings)
    if status < _REFUSED:
        return passed(f"{SUBJECT}: client", f"the provider accepts {client!r} with {uri}")
    remedy = f"register {client!r} there as a web application with the redirect URI {uri}"
    return failed(f"{SUBJECT}: client", f"the provider answers with status {status}", remedy)
