"""Complete texts are compressed for clients that accept it; short ones and streams are not."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from gateway.web.compression import MIN_BYTES, compress_middleware
from gateway.web.http.preconditions import accepts_gzip

LONG = "swan " * 100_000


@pytest.mark.parametrize(
    ("accepted", "allowed"),
    [
        ("", False),
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("xgzip", False),
    ],
)
def test_a_client_says_what_it_accepts(accepted: str, *, allowed: bool) -> None:
    """A weight of 0 refuses; `*` means what is not named."""
    assert accepts_gzip(accepted) is allowed


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(LONG.encode())
    return response


async def _text(request: web.Request) -> web.Response:
    headers = {"ETag": '"1"'} if "etag" in request.query else {}
    kind = request.query.get("type", "application/json")
    return web.Response(
        text=LONG[: int(request.query["length"])], content_type=kind, headers={**headers, "Vary": "Origin"}
    )


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Serve texts and a stream."""
    app = web.Application(middlewares=[compress_middleware])
    app.router.add_get("/text", _text)
    app.router.add_get("/stream", _stream)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "method", "accepted", "compressed"),
    [
        ("/text?length=500000", "GET", "gzip", True),
        (f"/text?length={MIN_BYTES}&type=application/problem%2Bjson", "GET", "gzip", True),
        (f"/text?length={MIN_BYTES}&type=text/plain", "GET", "gzip", True),
        ("/text?length=500000", "HEAD", "gzip", True),
        ("/text?length=500000", "GET", "br", False),
        (f"/text?length={MIN_BYTES - 1}", "GET", "gzip", False),
        ("/text?length=500000&type=image/png", "GET", "gzip", False),
        ("/text?length=500000&etag=1", "GET", "gzip", False),
        ("/stream", "GET", "gzip", False),
    ],
)
async def test_what_is_compressed(
    url: str, path: str, method: str, accepted: str, *, compressed: bool
) -> None:
    """The compressed body is the same text, and its length is stated."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, url + path, headers={"Accept-Encoding": accepted}) as answer,
    ):
        raw = await answer.read()
    assert (answer.headers.get("Content-Encoding") == "gzip") is compressed
    text = gzip.decompress(raw).decode() if compressed and raw else raw.decode()
    assert LONG.startswith(text)
    if method == "GET" and path != "/stream":
        assert len(raw) == int(answer.headers["Content-Length"])
        assert len(text) == int(answer.url.query["length"])
    if compressed:
        assert answer.headers["Vary"] == "Origin, Accept-Encoding"
