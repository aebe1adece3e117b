"""Access tokens of credentials: the answer of a token endpoint is read to its end, within a bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from egress.guard import TRUSTED
from egress.proxy.signing import SigningFailed
from gateway.environments.credential_headers import (
    MAX_ANSWER_BYTES,
    REFUSED_SECONDS,
    AccessToken,
    AccessTokens,
    TokenClient,
)


@asynccontextmanager
async def token_endpoint(*pieces: bytes) -> AsyncIterator[str]:
    """Serve one answer in pieces, each sent by itself; yield its URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.05)
        await response.write_eof()
        return response

    application = web.Application()
    application.router.add_post("/token", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    finally:
        await runner.cleanup()


async def test_an_answer_in_pieces_is_read_to_its_end() -> None:
    """A token endpoint may send its answer in any number of pieces."""
    content = json.dumps({"access_token": "token", "padding": "x" * 3000}).encode()
    async with token_endpoint(content[:20], content[20:1000], content[1000:]) as url:
        assert (await TokenClient(guard=TRUSTED).post(url))["access_token"] == "token"


async def test_an_endless_answer_is_refused() -> None:
    """An answer beyond the bound is no token."""
    async with token_endpoint(b'{"access_token": "', b"x" * MAX_ANSWER_BYTES, b'"}') as url:
        with pytest.raises(SigningFailed):
            await TokenClient(guard=TRUSTED).post(url)


async def test_a_failed_fetch_leaves_nothing_behind() -> None:
    """A credential whose token cannot be fetched takes no memory, however often its secret is changed."""
    tokens = AccessTokens()

    async def fail() -> AccessToken:
        raise SigningFailed("no")

    for number in range(3):
        with pytest.raises(SigningFailed):
            await tokens.get(f"credential {number}", fail)
    assert len(tokens) == 0


async def test_a_refused_token_is_replaced_once_a_minute() -> None:
    """A token that was revoked before its end is fetched again, but not for each refused request."""
    now = [0.0]
    fetched: list[AccessToken] = []
    tokens = AccessTokens(clock=lambda: now[0])

    async def fetch() -> AccessToken:
        fetched.append(AccessToken(text=f"token-{len(fetched)}", expires=9000.0))
        return fetched[-1]

    for seconds, expected in ((0.0, "token-0"), (REFUSED_SECONDS, "token-0"), (0.0, "token-1")):
        now[0] += seconds
        found = await tokens.get("credential", fetch)
        assert found.text == expected
        tokens.discard("credential", found)
    tokens.discard("credential", fetched[0])
    assert (await tokens.get("credential", fetch)).text == "token-1"
    assert len(tokens) == 1


async def test_one_fetch_serves_all_who_wait() -> None:
    """Requests that need the same token at once share one fetch."""
    tokens, fetched = AccessTokens(clock=lambda: 0.0), []

    async def fetch() -> AccessToken:
        fetched.append(1)
        await asyncio.sleep(0)
        return AccessToken(text="token", expires=1000.0)

    found = await asyncio.gather(*(tokens.get("credential", fetch) for _ in range(5)))
    assert {one.text for one in found} == {"token"}
    assert (len(fetched), len(tokens)) == (1, 1)
