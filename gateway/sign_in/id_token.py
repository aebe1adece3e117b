"""Validation of ID tokens (OpenID Connect Core 1.0, section 3.1.3.7)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.sign_in.errors import SignInFailed

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures with a public key. `none` and those with a shared secret are refused."""

LEEWAY_SECONDS = 60
MAX_TOKEN_LENGTH = 64 * 1024
MAX_SUBJECT_LENGTH = 255
_REQUIRED = ["iss", "sub", "aud", "exp", "iat", "nonce"]


class UnknownSigningKey(Exception):
    """No published key fits the token's signature; the provider may have others by now."""

    remedy = "retry"


def verify(
    token: str, keys: Sequence[Mapping[str, Any]], *, issuer: str, client_id: str, nonce: str
) -> Mapping[str, Any]:
    """Return the claims of a valid ID token; raises UnknownSigningKey or SignInFailed."""
    import jwt  # not at the start: it loads most of `cryptography`

    try:
        claims = _decode(token, keys, issuer=issuer, client_id=client_id)
    except jwt.InvalidSignatureError:
        raise UnknownSigningKey from None
    except (jwt.PyJWTError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise SignInFailed("refused", f"the ID token is not valid: {error}") from error
    audience = claims["aud"]
    if isinstance(audience, list) and len(audience) > 1 and "azp" not in claims:
        raise SignInFailed("refused", "the ID token has several audiences and no azp")
    if claims.get("azp", client_id) != client_id:
        raise SignInFailed("refused", "the ID token was issued to another client (azp)")
    given = claims["nonce"]
    if not isinstance(given, str) or not hmac.compare_digest(
        given.encode("utf-8", "replace"), nonce.encode()
    ):
        raise SignInFailed("refused", "the nonce of the ID token is not that of this sign-in")
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= MAX_SUBJECT_LENGTH:
        raise SignInFailed("refused", "the ID token names no usable subject (sub)")
    return claims


def _decode(
    token: str, keys: Sequence[Mapping[str, Any]], *, issuer: str, client_id: str
) -> Mapping[str, Any]:
    import jwt  # not at the start: it loads most of `cryptography`

    if len(token) > MAX_TOKEN_LENGTH:
        raise SignInFailed("refused", f"the ID token has more than {MAX_TOKEN_LENGTH} characters")
    header = jwt.get_unverified_header(token)
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise SignInFailed(
            "refused", f"the ID token is signed with {str(algorithm)[:20]!r}, which is refused"
        )
    key = _select_key(keys, algorithm, header.get("kid"))
    claims: Mapping[str, Any] = jwt.decode(
        token,
        key=key,
        algorithms=[algorithm],
        issuer=issuer,
        audience=client_id,
        leeway=LEEWAY_SECONDS,
        options={"require": _REQUIRED},
    )
    return claims


def _select_key(keys: Sequence[Mapping[str, Any]], algorithm: str, key_id: object) -> PyJWK:
    """Return the published key for a token; without an id in the token there must be exactly one."""
    from jwt import PyJWK

    usable = [
        key
        for key in keys
        if key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and key.get("kty") == _key_type(algorithm)
        and (key_id is None or key.get("kid") == key_id)
    ]
    if len(usable) != 1:
        raise UnknownSigningKey
    return PyJWK.from_dict(dict(usable[0]), algorithm)


def _key_type(algorithm: str) -> str:
    return {"E": "OKP" if algorithm == "EdDSA" else "EC"}.get(algorithm[0], "RSA")
