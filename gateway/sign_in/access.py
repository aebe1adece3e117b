"""What a person may do: the account and the scopes that the settings give to the claims of an ID token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.accounts.api_keys import ALL_SCOPES
from gateway.config.sign_in_settings import KeyScope, OidcSettings, SignInAccess

EMAIL = "email"
MAX_SHOWN = 120


def access_of(settings: OidcSettings, claims: Mapping[str, Any]) -> SignInAccess | None:
    """Return a person's access, or None without one.

    The first matching table names the account. The scopes of all matching tables with that account are
    joined.
    """
    values = claim_values(claims, settings.claim)
    matching = [granted for value, granted in settings.access.items() if value in values]
    if not matching:
        return None
    account = matching[0].account
    scopes = {scope for granted in matching if granted.account == account for scope in granted.scopes}
    ordered: tuple[KeyScope, ...] = tuple(scope for scope in ALL_SCOPES if scope in scopes)
    return SignInAccess(account=account, scopes=ordered)


def claim_values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts of a claim; dots lead into objects if no claim has the whole name.

    An address of e-mail counts only if the provider says that it is verified.
    """
    if name == EMAIL and claims.get("email_verified") is not True:
        return frozenset()
    found: Any = claims.get(name)
    if name not in claims:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    texts = found if isinstance(found, list) else [found]
    return frozenset(text for text in texts if isinstance(text, str))


def shown_name(claims: Mapping[str, Any]) -> str:
    """Return how a person is called in lists: a name of the claims, or the subject."""
    for claim in ("preferred_username", EMAIL, "name", "sub"):
        text = claims.get(claim)
        if isinstance(text, str) and text.strip() and text.isprintable():
            return text.strip()[:MAX_SHOWN]
    return "a person"
