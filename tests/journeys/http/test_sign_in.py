"""Sign-in with an identity provider over HTTP: what a browser gets, and whose answers are refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from yarl import URL

from api_server import ApiClient, ApiServer, open_api_server
from delivery.database.engine import Database
from egress.policy import EgressPolicy
from gateway.config.sign_in_settings import OidcSettings
from gateway.sign_in.attempt import LIFETIME
from gateway.sign_in.fetching import MAX_BODY_BYTES, ProviderConnection
from gateway.sign_in.oidc_sign_in import OidcSignIn
from gateway.sign_in.provider import IdentityProvider
from oidc_issuer import CLIENT_ID, CLIENT_SECRET, LoopbackIssuer, loopback_issuer, sign

PUBLIC_URL = "https://bots.example.org/gateway"
ACCESS = {
    "ops": {"scopes": ["read", "admin"]},
    "writers": {"scopes": ["chat"]},
    "strangers": {"account": "nowhere", "scopes": ["read"]},
}


@dataclass(slots=True)
class AttemptClock:
    """The time of the gateway's attempts."""

    ahead: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return time.time() + self.ahead


@dataclass(slots=True, kw_only=True)
class SignInRig:
    """A gateway with an identity provider."""

    api: ApiServer
    issuer: LoopbackIssuer
    clock: AttemptClock


@dataclass(slots=True)
class Visitor:
    """A browser: keeps cookies, and follows redirects one by one."""

    place: SignInRig
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, url: str) -> str:
        """Return where the answer to a request leads; the public URL is the gateway of the test."""
        path = url.removeprefix(PUBLIC_URL)
        session = self.place.api.anonymous.session
        target = URL(f"{self.place.api.url}{path}" if path != url else url, encoded=True)
        async with session.get(target, headers=self._headers(), allow_redirects=False) as answer:
            assert answer.status == 302
            self._keep(answer)
            return answer.headers["Location"]

    async def sign_in(self) -> str:
        """Go to the provider and back; returns where the console opens."""
        there = await self.get(f"{PUBLIC_URL}/console/oidc")
        if not there.startswith(self.place.issuer.url):
            return there
        return await self.get(await self.get(there))

    async def fetch_key(self) -> tuple[int, Any]:
        """Exchange the one-time code for a key, as the console does."""
        headers = {**self._headers(), "Origin": "https://bots.example.org"}
        session, url = self.place.api.anonymous.session, f"{self.place.api.url}/console/oidc/session"
        async with session.post(url, headers=headers) as answer:
            self._keep(answer)
            return answer.status, await answer.json(content_type=None)

    async def enter(self) -> ApiClient:
        """Sign in and return a client with the person's key."""
        assert await self.sign_in() == f"{PUBLIC_URL}/#/signed-in"
        status, body = await self.fetch_key()
        assert status == 200
        return ApiClient(session=self.place.api.anonymous.session, url=self.place.api.url, key=body["key"])

    def _headers(self) -> Mapping[str, str]:
        pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": pairs} if pairs else {}

    def _keep(self, answer: aiohttp.ClientResponse) -> None:
        for line in answer.headers.getall("Set-Cookie", []):
            for name, cookie in SimpleCookie(line).items():
                assert cookie["httponly"]
                assert cookie["secure"]
                assert cookie["samesite"] == "Lax"
                assert name.startswith("__Host-")
                self.cookies.pop(name, None)
                if cookie["max-age"] != "0":
                    self.cookies[name] = cookie.value


def _sign_in(issuer: LoopbackIssuer, clock: AttemptClock, database: Database) -> OidcSignIn:
    settings = OidcSettings.model_validate(
        {"issuer": issuer.url, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "access": ACCESS}
    )
    connection = ProviderConnection(issuer=issuer.url, policy=EgressPolicy())
    return OidcSignIn(
        settings=settings,
        provider=IdentityProvider(connection),
        database=database,
        public_url=PUBLIC_URL,
        keys=(b"k" * 32,),
        clock=clock,
    )


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[SignInRig]:
    """A gateway that sends people to a provider on loopback."""
    clock = AttemptClock()
    async with (
        loopback_issuer() as issuer,
        open_api_server(tmp_path, sign_in=partial(_sign_in, issuer, clock), public_url=PUBLIC_URL) as api,
    ):
        yield SignInRig(api=api, issuer=issuer, clock=clock)


async def test_a_person_gets_a_key_with_the_scopes_of_the_groups(place: SignInRig) -> None:
    """The key reads and changes what the tables of all groups allow, and nothing else."""
    place.issuer.claims = {"sub": "1", "groups": ["others", "writers", "ops"], "preferred_username": "ann"}
    person = await Visitor(place).enter()
    mine = (await person.call("GET", "/accounts/me")).body
    key = (await person.call("GET", f"/accounts/me/keys/{mine['key']}")).body
    assert mine["name"] == "default"
    assert (key["name"], key["subject"], key["scopes"]) == ("sign-in of ann", "1", ["chat", "read", "admin"])
    assert key["expires_at"] is not None
    assert (await person.call("POST", "/jobs/job_x/stop")).status == 403
    entry = (await person.call("GET", "/accounts/me/audit")).body["items"][0]
    assert (entry["actor"], entry["object"]) == (mine["key"], "ann")


async def test_the_code_of_a_sign_in_counts_once_and_opens_nothing_itself(place: SignInRig) -> None:
    """A second exchange is refused, and so is the code as a key."""
    visitor = Visitor(place)
    await visitor.sign_in()
    kept = dict(visitor.cookies)
    (code,) = kept.values()
    thief = ApiClient(session=place.api.anonymous.session, url=place.api.url, key=code)
    assert (await thief.call("GET", "/accounts/me")).status == 401
    assert (await visitor.fetch_key())[0] == 200
    assert visitor.cookies == {}
    visitor.cookies = kept
    assert (await visitor.fetch_key())[0] == 404


async def test_leaving_ends_the_key_of_a_person_and_no_other(place: SignInRig) -> None:
    """The person's key is refused afterwards; a program that asks the same keeps its key."""
    person = await Visitor(place).enter()
    assert (await person.call("POST", "/console/leave")).body == {"url": None}
    assert (await person.call("GET", "/accounts/me")).status == 401
    assert (await place.api.mine.call("POST", "/console/leave")).status == 200
    assert (await place.api.mine.call("GET", "/accounts/me")).status == 200


async def test_the_console_gets_the_start_of_the_sign_in(place: SignInRig, tmp_path: Path) -> None:
    """The address is below the public URL, where the cookie belongs; without a provider there is none."""
    about = (await place.api.anonymous.call("GET", "/console/sign-in")).body
    assert about == {"oidc": {"label": "single sign-on", "url": f"{PUBLIC_URL}/console/oidc"}}
    (tmp_path / "plain").mkdir()
    async with open_api_server(tmp_path / "plain") as plain:
        assert (await plain.anonymous.call("GET", "/console/sign-in")).body == {"oidc": None}
        assert (await plain.anonymous.call("GET", "/console/oidc")).status == 404


async def test_the_answer_of_another_browser_is_refused(place: SignInRig) -> None:
    """A state without its cookie, or with the cookie of another attempt, starts no session."""
    begun, other = Visitor(place), Visitor(place)
    back = await begun.get(await begun.get(f"{PUBLIC_URL}/console/oidc"))
    assert await other.get(back) == f"{PUBLIC_URL}/#/sign-in/expired"
    await other.get(f"{PUBLIC_URL}/console/oidc")
    assert await other.get(back) == f"{PUBLIC_URL}/#/sign-in/expired"
    assert other.cookies == {}
    assert "/token" not in place.issuer.asked


async def test_an_attempt_ends_after_some_minutes(place: SignInRig) -> None:
    """A browser that comes back too late begins again."""
    visitor = Visitor(place)
    back = await visitor.get(await visitor.get(f"{PUBLIC_URL}/console/oidc"))
    place.clock.ahead = LIFETIME + 1
    assert await visitor.get(back) == f"{PUBLIC_URL}/#/sign-in/expired"


async def test_each_attempt_has_secrets_of_its_own(place: SignInRig) -> None:
    """State, nonce and challenge differ between attempts and from each other."""
    for _ in range(2):
        visitor = Visitor(place)
        await visitor.get(await visitor.get(f"{PUBLIC_URL}/console/oidc"))
    reported = [
        asked[name] for asked in place.issuer.authorizations for name in ("state", "nonce", "code_challenge")
    ]
    assert len(set(reported)) == len(reported) == 6


def _with(**changed: Any) -> Any:
    return lambda issuer, claims: sign(issuer, {**claims, **changed})


def _without(name: str) -> Any:
    return lambda issuer, claims: sign(issuer, {key: value for key, value in claims.items() if key != name})


def _unsigned(_issuer: LoopbackIssuer, claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", algorithm="none")


def _signed_with_the_secret(issuer: LoopbackIssuer, claims: dict[str, Any]) -> str:
    return jwt.encode(claims, CLIENT_SECRET.ljust(32), algorithm="HS256", headers={"kid": issuer.key_id})


def _signed_by_another(issuer: LoopbackIssuer, claims: dict[str, Any]) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": issuer.key_id})


def _changed_after_signing(issuer: LoopbackIssuer, claims: dict[str, Any]) -> str:
    header, _payload, signature = sign(issuer, claims).split(".")
    _header, payload, _signature = sign(issuer, {**claims, "groups": ["ops", "more"]}).split(".")
    return f"{header}.{payload}.{signature}"


FORGERIES = {
    "nonce": _with(nonce="another"),
    "no nonce": _without("nonce"),
    "audience": _with(aud="another client"),
    "audiences without azp": _with(aud=[CLIENT_ID, "another client"]),
    "azp": _with(aud=[CLIENT_ID, "another client"], azp="another client"),
    "issuer": _with(iss="https://login.example.org"),
    "expired": _with(exp=int(time.time()) - 3600),
    "no end": _without("exp"),
    "endless": _with(exp=float("inf")),
    "not yet": _with(iat=int(time.time()) + 3600),
    "no subject": _without("sub"),
    "subject": _with(sub="x" * 256),
    "unsigned": _unsigned,
    "signed with the secret": _signed_with_the_secret,
    "signed by another": _signed_by_another,
    "changed": _changed_after_signing,
    "no token": lambda _issuer, _claims: "not a token",
    "huge": _with(more="x" * 100_000),
}


async def test_a_wrong_id_token_is_refused(place: SignInRig) -> None:
    """Each rule of Core 1.0, section 3.1.3.7, that a token breaks alone ends the sign-in."""
    outcomes = {}
    for name, forge in FORGERIES.items():
        place.issuer.forge = forge
        visitor = Visitor(place)
        outcomes[name] = await visitor.sign_in(), visitor.cookies
    assert outcomes == dict.fromkeys(FORGERIES, (f"{PUBLIC_URL}/#/sign-in/refused", {}))


async def test_several_audiences_with_ours_as_authorized_party_are_accepted(place: SignInRig) -> None:
    """The audience may be a list if azp names this client."""
    place.issuer.forge = _with(aud=[CLIENT_ID, "another client"], azp=CLIENT_ID)
    await Visitor(place).enter()


async def test_keys_that_the_provider_rotated_are_fetched_once(place: SignInRig) -> None:
    """A token of a new key is accepted without a restart; known keys are not fetched again."""
    await Visitor(place).enter()
    await Visitor(place).enter()
    assert place.issuer.asked.count("/keys") == 1
    place.issuer.rotate()
    await Visitor(place).enter()
    assert place.issuer.asked.count("/keys") == 2
    assert place.issuer.asked.count("/.well-known/openid-configuration") == 1


async def test_who_has_no_access_gets_no_key(place: SignInRig) -> None:
    """A valid token without a known group, or for an account that is not there, opens nothing."""
    for groups in (["others"], [], None, {"ops": True}, ["strangers"]):
        place.issuer.claims = {"sub": "1", "groups": groups}
        assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/no-access"


async def test_the_person_may_say_no(place: SignInRig) -> None:
    """An error of the provider leads back to the console."""
    place.issuer.error = "access_denied"
    assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/denied"


async def test_an_answer_of_another_issuer_is_refused(place: SignInRig) -> None:
    """The parameter iss of RFC 9207 must be the provider's, and must be there if the provider sends it."""
    place.issuer.metadata = {"authorization_response_iss_parameter_supported": True}
    assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/refused"
    visitor = Visitor(place)
    back = await visitor.get(await visitor.get(f"{PUBLIC_URL}/console/oidc"))
    assert (await visitor.get(f"{back}&iss=https://login.example.org")).endswith("/refused")
    visitor = Visitor(place)
    back = await visitor.get(await visitor.get(f"{PUBLIC_URL}/console/oidc"))
    assert (await visitor.get(f"{back}&iss={place.issuer.url}")).endswith("/signed-in")


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://login.example.org"},
        {"jwks_uri": "http://login.example.org/keys"},
        {"jwks_uri": "https://169.254.169.254/keys"},
        {"jwks_uri": "https://127.0.0.1:1/keys"},
        {"token_endpoint": "file:///etc/passwd"},
        {"authorization_endpoint": None},
        {"padding": "x" * MAX_BODY_BYTES},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_provider_that_leads_elsewhere_is_refused(place: SignInRig, metadata: dict[str, Any]) -> None:
    """Endpoints are https or at the issuer, no private address is called, and bodies have a bound."""
    place.issuer.metadata = metadata
    assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/unavailable"


async def test_a_token_endpoint_may_fail(place: SignInRig) -> None:
    """No answer of the token endpoint raises anything but a refusal."""
    for status, body, outcome in (
        (200, b"{}", "refused"),
        (200, b"[" * 100_000, "refused"),
        (400, b'{"error": "invalid_grant"}', "refused"),
        (503, b"<html>", "unavailable"),
        (200, b"x" * (MAX_BODY_BYTES + 1), "unavailable"),
    ):
        place.issuer.token_answer = (status, body)
        assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/{outcome}"


async def test_a_secret_goes_into_the_form_where_the_provider_wants_it(place: SignInRig) -> None:
    """With client_secret_post alone the header stays empty."""
    place.issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await Visitor(place).enter()


async def test_an_issuer_that_is_down_can_be_tried_again(tmp_path: Path) -> None:
    """Nothing of a failed attempt is kept."""
    clock = AttemptClock()
    async with loopback_issuer() as issuer:
        url, issuer.url = issuer.url, "http://127.0.0.1:1"
        async with open_api_server(
            tmp_path, sign_in=partial(_sign_in, issuer, clock), public_url=PUBLIC_URL
        ) as api:
            place = SignInRig(api=api, issuer=issuer, clock=clock)
            assert await Visitor(place).sign_in() == f"{PUBLIC_URL}/#/sign-in/unavailable"
        issuer.url = url
        (tmp_path / "again").mkdir()
        async with open_api_server(
            tmp_path / "again", sign_in=partial(_sign_in, issuer, clock), public_url=PUBLIC_URL
        ) as api:
            await Visitor(SignInRig(api=api, issuer=issuer, clock=clock)).enter()
