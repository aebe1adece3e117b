"""Deleted tokens are revoked at their authorization server; a failure ends nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from egress.guard import TRUSTED, EgressGuard
from egress.policy import EgressPolicy
from gateway.sign_in.token_revocation import TokenRevocation, TokenRevocations

PATIENCE = 60.0


@dataclass(kw_only=True)
class RevocationEndpoint:
    """An authorization server that answers with the next of these statuses, then with 200."""

    statuses: list[int] = field(default_factory=list)
    url: str = ""
    received: asyncio.Queue[tuple[dict[str, Any], str]] = field(default_factory=asyncio.Queue)

    async def handle(self, request: web.Request) -> web.Response:
        """Take a form."""
        form = dict(await request.post())
        self.received.put_nowait((form, request.headers.get("Authorization", "")))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)


@asynccontextmanager
async def revocation_endpoint(*statuses: int) -> AsyncIterator[RevocationEndpoint]:
    """Serve an endpoint until the block ends."""
    endpoint = RevocationEndpoint(statuses=list(statuses))
    application = web.Application()
    application.router.add_post("/revoke", endpoint.handle)
    async with TestServer(application) as server:
        endpoint.url = str(server.make_url("/revoke"))
        yield endpoint


def revocation(
    url: str, *, token: str, guard: EgressGuard = TRUSTED, address: str | None = None, **client: str
) -> TokenRevocation:
    """Return the revocation of an access token; without `address` at the server that it was for."""
    known = {"client_id": "c", **client}
    return TokenRevocation(
        endpoint=url, tokens={"access_token": token}, client=known, address=address or url, guard=guard
    )


async def revoke_all(*wanted: TokenRevocation, policy: EgressPolicy = EgressPolicy()) -> None:  # noqa: B008
    """Send revocations and stop."""
    revocations, stop = TokenRevocations(policy), asyncio.Event()
    for one in wanted:
        revocations.revoke_soon("acc_1", one)
    stop.set()
    async with asyncio.timeout(PATIENCE):
        await revocations.run(stop)


async def test_both_tokens_are_sent_with_the_client_that_has_them() -> None:
    """The refresh token is first, because its revocation may end the other; a secret is in the form."""
    async with revocation_endpoint() as endpoint:
        one = TokenRevocation(
            endpoint=endpoint.url,
            tokens={"access_token": "a", "refresh_token": "r", "token_type": "Bearer"},
            client={
                "client_id": "c",
                "client_secret": "s",
                "token_endpoint_auth_method": "client_secret_post",
            },
            address=endpoint.url,
            guard=TRUSTED,
        )
        await revoke_all(one)
        forms = [endpoint.received.get_nowait() for _form in range(2)]
    client = {"client_id": "c", "client_secret": "s"}
    assert forms == [
        ({"token": "r", "token_type_hint": "refresh_token", **client}, ""),
        ({"token": "a", "token_type_hint": "access_token", **client}, ""),
    ]
    assert "'r'" not in repr(one)


def test_a_client_may_be_registered_for_basic_authentication() -> None:
    """Then its id and secret are quoted and sent in the header alone."""
    one = revocation(
        "https://a.example/revoke",
        token="t",
        client_secret="s:/",
        token_endpoint_auth_method="client_secret_basic",
    )
    assert one.headers() == {"Authorization": "Basic YzpzJTNBJTJG"}
    assert one.forms() == [{"token": "t", "token_type_hint": "access_token", "client_id": "c"}]


async def test_a_failure_does_not_end_the_others() -> None:
    """A server that fails and an address that is not allowed are passed over."""
    async with revocation_endpoint(503) as endpoint:
        await revoke_all(
            revocation(endpoint.url, token="first"),
            revocation(endpoint.url, token="local", address="https://mcp.example/"),
            revocation("not a URL", token="none", address="https://mcp.example/"),
            revocation(endpoint.url, token="guarded", guard=EgressGuard()),
            revocation(endpoint.url, token="last"),
        )
        sent = [endpoint.received.get_nowait()[0]["token"] for _form in range(2)]
        assert endpoint.received.empty()
    assert sorted(sent) == ["first", "last"]


async def test_an_allowed_network_may_have_the_authorization_server() -> None:
    """A server that only metadata names is called if the operator allows its network."""
    async with revocation_endpoint() as endpoint:
        one = revocation(endpoint.url, token="t", address="https://mcp.example/")
        await revoke_all(one, policy=EgressPolicy.parse("127.0.0.0/8"))
        assert endpoint.received.get_nowait()[0]["token"] == "t"
