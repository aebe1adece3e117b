"""Settings of the sign-in to the console with an OpenID Connect provider."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from egress.urls import EndpointUrl
from gateway.config.setting_types import FrozenSettings, NonBlankText, Seconds, SecretValue, split_list

KeyScope = Literal["chat", "read", "jobs", "admin"]


class IssuerUrl(EndpointUrl):
    """The URL that names an identity provider; a slash at its end is a part of the name."""

    __slots__ = ()
    keeps_slash: ClassVar[bool] = True


class SignInAccess(FrozenSettings):
    """What people may do whose claim has one value."""

    account: NonBlankText = Field(default="default", description="the name of the account")
    scopes: Annotated[tuple[KeyScope, ...], BeforeValidator(split_list), Field(min_length=1)] = Field(
        description="chat, read, jobs, admin"
    )


class OidcSettings(FrozenSettings):
    """An identity provider with which people sign in to the console. Without an issuer there is none."""

    issuer: IssuerUrl | None = Field(
        default=None, description="the identity provider's issuer URL, exactly as the provider writes it"
    )
    client_id: NonBlankText | None = Field(
        default=None, description="the client id that the provider issued for the gateway"
    )
    client_secret: SecretValue | None = Field(
        default=None, description="the client's secret; without it the client is a public one"
    )
    scope: NonBlankText = Field(
        default="openid profile email", description="what is asked of the provider, separated by spaces"
    )
    claim: NonBlankText = Field(
        default="groups", description="the claim of the ID token that `oidc.access` names values of"
    )
    access: dict[str, SignInAccess] = Field(
        default={}, description="[oidc.access.VALUE]: account and scopes of people with this claim value"
    )
    label: NonBlankText = Field(
        default="single sign-on", max_length=60, description="the provider's name on the console's button"
    )
    session: Seconds = Field(default=28_800.0, ge=60, description="seconds until a person signs in again")
    end_provider_session: bool = Field(
        default=False, description="leaving the console also ends the session at the provider"
    )
