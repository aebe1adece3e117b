"""Sign-in with a provider that was not written here: whose answers count, and what the doctor finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from delivery.database.engine import Database
from egress.policy import EgressPolicy
from gateway.accounts import api_keys
from gateway.cli.doctor.check import CheckState, DoctorCheck
from gateway.cli.doctor.sign_in_checks import check_sign_in
from gateway.config.load import load
from gateway.config.sign_in_settings import OidcSettings
from gateway.sign_in.errors import SignInFailed
from gateway.sign_in.fetching import ProviderConnection
from gateway.sign_in.oidc_sign_in import CALLBACK_PATH, OidcSignIn
from gateway.sign_in.provider import IdentityProvider
from migrated import migrated_sqlite
from oidc_issuer import CLIENT_ID, loopback_issuer
from oidc_provider_process import ProviderProcess, provider_process

PUBLIC_URL = "http://127.0.0.1:1"
ACCESS = {"ops": {"scopes": ["read", "chat"]}}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A gateway's database."""
    found = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    try:
        yield found
    finally:
        await found.close()


@pytest.fixture
async def provider() -> AsyncIterator[ProviderProcess]:
    """The provider with a person who is in the group ops."""
    async with provider_process() as process:
        await process.set_user("ada", groups=["ops"], preferred_username="ada")
        yield process


async def sign_in_at(provider: ProviderProcess, database: Database, client: tuple[str, str]) -> OidcSignIn:
    """Return the gateway's side of a sign-in, with an account."""
    async with database.begin() as connection:
        await api_keys.create_account(connection, "default")
    settings = OidcSettings.model_validate(
        {"issuer": provider.url, "client_id": client[0], "client_secret": client[1], "access": ACCESS}
    )
    return OidcSignIn(
        settings=settings,
        provider=IdentityProvider(ProviderConnection(issuer=provider.url, policy=EgressPolicy())),
        database=database,
        public_url=PUBLIC_URL,
        keys=(b"k" * 32,),
    )


async def sign_in(provider: ProviderProcess, gateway: OidcSignIn, subject: str) -> str:
    """Go to the provider as a person and come back; returns the one-time code of a key."""
    attempt, there = await gateway.begin()
    back = URL(await provider.authorize(there, subject))
    return await gateway.finish(attempt.cookie, dict(back.query), address="127.0.0.1")


async def test_a_person_of_the_group_gets_a_key_and_others_do_not(
    provider: ProviderProcess, database: Database
) -> None:
    """The claim decides at each sign-in: who left the group at the provider gets no further key."""
    gateway = await sign_in_at(provider, database, await provider.register(f"{PUBLIC_URL}{CALLBACK_PATH}"))
    signed_in = await gateway.redeem(await sign_in(provider, gateway, "ada"))
    assert signed_in is not None
    await provider.set_user("ada", groups=["former"])
    with pytest.raises(SignInFailed) as refused:
        await sign_in(provider, gateway, "ada")
    assert refused.value.failure == "no-access"


async def test_a_client_with_another_secret_cannot_sign_in(
    provider: ProviderProcess, database: Database
) -> None:
    """The token endpoint refuses the client, which is an error of the operator and not of the person."""
    client, _secret = await provider.register(f"{PUBLIC_URL}{CALLBACK_PATH}")
    gateway = await sign_in_at(provider, database, (client, "another secret"))
    with pytest.raises(SignInFailed, match="invalid_client") as refused:
        await sign_in(provider, gateway, "ada")
    assert refused.value.failure == "refused"


async def test_a_token_that_has_expired_cannot_sign_in(database: Database) -> None:
    """The provider's own signature does not help a token of the past."""
    async with provider_process(token_seconds=-3600) as provider:
        await provider.set_user("ada", groups=["ops"])
        client = await provider.register(f"{PUBLIC_URL}{CALLBACK_PATH}")
        gateway = await sign_in_at(provider, database, client)
        with pytest.raises(SignInFailed, match="expired") as refused:
            await sign_in(provider, gateway, "ada")
        assert refused.value.failure == "refused"


async def diagnose(directory: Path, issuer: str, client: str) -> list[DoctorCheck]:
    """Return what the doctor says of a provider."""
    oidc = {"ISSUER": issuer, "CLIENT_ID": client, "ACCESS__OPS__SCOPES": "read"}
    env = {f"DOVECOTE_OIDC__{name}": value for name, value in oidc.items()}
    settings = load(env={**env, "DOVECOTE_PUBLIC_URL": PUBLIC_URL}, directory=directory)
    return await asyncio.to_thread(lambda: list(check_sign_in(settings)))


async def test_the_doctor_asks_the_provider(provider: ProviderProcess, tmp_path: Path) -> None:
    """Metadata, keys and the redirect URI are checked; one that is not registered has a remedy."""
    client, _secret = await provider.register(f"{PUBLIC_URL}{CALLBACK_PATH}")
    found = await diagnose(tmp_path, provider.url, client)
    assert [one.state for one in found] == [CheckState.OK] * 3, found
    other, _secret = await provider.register("http://127.0.0.1:2/elsewhere")
    *_others, redirect = await diagnose(tmp_path, provider.url, other)
    assert redirect.state is CheckState.FAILED
    assert f"{PUBLIC_URL}{CALLBACK_PATH}" in redirect.remedy


async def test_the_doctor_names_what_is_wrong_with_an_issuer(tmp_path: Path) -> None:
    """An issuer that does not answer, calls itself otherwise or publishes no key has a remedy of its own."""
    async with loopback_issuer() as issuer:
        url = issuer.url
        issuer.jwks = {"keys": [{"kty": "oct", "k": "AAAA"}]}
        _metadata, keys, _redirect = await diagnose(tmp_path, url, CLIENT_ID)
        assert (keys.state, "public key" in keys.detail) == (CheckState.FAILED, True)
        issuer.metadata = {"issuer": "https://login.example.org"}
        (other,) = await diagnose(tmp_path, url, CLIENT_ID)
        assert (other.state, "https://login.example.org" in other.detail) == (CheckState.FAILED, True)
    (gone,) = await diagnose(tmp_path, url, CLIENT_ID)
    assert gone.state is CheckState.FAILED
    assert "oidc.issuer" in gone.remedy


async def test_the_doctor_says_nothing_without_a_provider(tmp_path: Path) -> None:
    """Keys alone need no identity provider."""
    settings = load(env={}, directory=tmp_path)
    assert list(check_sign_in(settings)) == []
