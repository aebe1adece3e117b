"""M1, M7: every invalid request is answered soon with a 4xx problem; never a 5xx, a hang or internals."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from api_server import ApiServer, open_api_server
from gateway.web.http.context import WebLimits

WITHIN = 60.0
# A machine that pauses for seconds must not change the result of a request that is sent at once.
LIMITS = WebLimits(
    auth_failures=100_000,
    header_deadline=WITHIN / 2,
    body_deadline=WITHIN / 2,
    body_bytes=64 * 1024,
    anonymous_connections=20,
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Serve the API with low limits."""
    async with open_api_server(tmp_path, bounds=LIMITS) as running:
        yield running


@pytest.fixture
async def short_header_deadline_api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Serve the API with two seconds for the head of a request."""
    async with open_api_server(tmp_path, bounds=replace(LIMITS, header_deadline=2.0)) as running:
        yield running


@pytest.fixture
async def short_body_deadline_api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Serve the API with little time for the body of a request."""
    async with open_api_server(tmp_path, bounds=replace(LIMITS, body_deadline=0.3)) as running:
        yield running


async def raw(face: ApiServer, *pieces: bytes) -> bytes:
    """Send bytes as they are and return everything that comes back until the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(WITHIN):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def post(face: ApiServer, body: bytes, *, path: str = "/accounts/me/agents", **headers: str) -> bytes:
    """Return a POST with the default key; header names may use underscores."""
    given_headers = {
        "Host": f"127.0.0.1:{face.port}",
        "Authorization": f"Bearer {face.mine.key}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given_headers.items() if value]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer, 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def problem_of(answer: bytes) -> dict[str, object]:
    """Return the problem in a raw response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer
    reported: dict[str, object] = json.loads(body)
    return reported


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "needs a JSON body"),
        (b"{", 400, "not JSON"),
        (b"nonsense", 400, "not JSON"),
        (b"[]", 422, "JSON object"),
        (b'"text"', 422, "JSON object"),
        (b'{"name": "a", "name": "b"}', 400, "repeats a key"),
        (b'{"name": "a", "config": {"x": 1, "x": 2}}', 400, "repeats a key"),
        (b'{"name": NaN}', 400, "NaN"),
        (b'{"name": 1e999}', 400, "too large"),
        (b'{"name": ' + b"9" * 5000 + b"}", 400, "too large"),
        (b'{"name": "\xff\xfe"}', 400, "not UTF-8"),
        (b'{"name": "\\u0000"}', 422, "NUL"),
        (b'{"name": "\\ud800"}', 422, "surrogate"),
        (b'{"\\ud800": 1}', 422, "surrogate"),
        (b"[" * 50_000, 400, "levels"),
        (b'{"config":' * 40 + b"1" + b"}" * 40, 400, "levels"),
        (b'{"name": 5}', 422, "string"),
        (b'{"name": null}', 422, "string"),
        (b'{"name": "a", "surplus": 1}', 422, "no such key"),
        (b'{"config": {}}', 422, "required"),
        (b'{"name": "a/b"}', 422, "slash"),
        (b'{"name": "a\\nb"}', 422, "control"),
        (b'{"name": "a", "config": []}', 422, "object"),
    ],
)
async def test_a_body_that_cannot_be_says_why(api: ApiServer, body: bytes, status: int, says: str) -> None:
    """Malformed, ambiguous and wrongly typed bodies are 400 or 422 with the reason."""
    answer = await raw(api, post(api, body))
    assert status_of(answer) == status, answer
    assert says in json.dumps(problem_of(answer))


@pytest.mark.parametrize(
    ("head", "status", "says"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n", 414, "a URL may have at most 8190 bytes"),
        (b"GET /livez HTTP/1.1\r\nCookie: " + b"a" * 9000 + b"\r\n", 431, "a header field may have"),
        (b"GET /livez HTTP/1.1\r\n" + b"a" * 9000 + b": x\r\n", 431, "a header field may have"),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n", 400, "not a valid HTTP request"),
    ],
)
async def test_what_is_too_long_is_named(api: ApiServer, head: bytes, status: int, says: str) -> None:
    """A URL is 414, a header 431, whether they come in one piece or two; the client learns the limit."""
    for pieces in ((head + b"Host: x\r\n\r\n",), (head[:8000], head[8000:] + b"Host: x\r\n\r\n")):
        answer = await raw(api, *pieces)
        assert (status_of(answer), says in str(problem_of(answer)["detail"])) == (status, True), answer
        assert b"Server: dovecote" in answer, "aiohttp names its version and that of Python"


@pytest.mark.parametrize(
    ("beginning", "says"),
    [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", "the PROXY protocol"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12), "the PROXY protocol"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2, and the gateway speaks HTTP/1.1"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
            "TLS, and the gateway speaks plain HTTP",
        ),
    ],
)
async def test_another_protocol_of_a_proxy_is_named(api: ApiServer, beginning: bytes, says: str) -> None:
    """A proxy that is set up for another server gets the reason, which its clients or the log show."""
    answer = await raw(api, beginning, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status_of(answer), says in str(problem_of(answer)["detail"])) == (400, True), answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": ""}, 415),
        ({"Content_Encoding": "gzip"}, 415),
        ({"Content_Encoding": "br"}, 415),
        ({"Content_Length": "99999999"}, 413),
        ({"Content_Length": "-1"}, 400),
        ({"Content_Length": "many"}, 400),
        ({"Transfer_Encoding": "chunked"}, 400),
        ({"Authorization": "Basic Zm9vOmJhcg=="}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer " + "x" * 4000}, 401),
        ({"Authorization": "Bearer dvk_\xff"}, 401),
        ({"Idempotency_Key": "x" * 201}, 422),
        ({"Idempotency_Key": "a b"}, 422),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Cookie": "a=b"}, 403),
    ],
)
async def test_a_header_that_cannot_be_is_refused(
    api: ApiServer, headers: dict[str, str], status: int
) -> None:
    """Wrong media types, encodings, lengths, keys and origins each have their 4xx."""
    answer = await raw(api, post(api, b'{"name": "a"}', **headers))
    assert status_of(answer) == status, answer


@pytest.mark.parametrize(
    ("expected", "replies"),
    [("wI7O_t", [201]), ("", [201]), ("100-Continue", [100, 201]), ("100-continue, tea", [201])],
)
async def test_an_expectation_is_met_or_ignored(api: ApiServer, expected: str, replies: list[int]) -> None:
    """Only `100-continue` has a meaning: others get the reply of a request without them."""
    answer = await raw(api, post(api, b'{"name": "a"}', Expect=expected))
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)] == replies, answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"POST /accounts HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /accounts HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /accounts/me/agents/%ff%fe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /accounts/me/agents/\xff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET //evil.example/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/accounts/me HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_at_once(api: ApiServer, request_bytes: bytes) -> None:
    """Garbage on the wire is a 4xx or a closed connection, and the next request is served."""
    answer = await raw(api, request_bytes)
    assert answer == b"" or 400 <= status_of(answer) < 500, answer
    assert not answer or problem_of(answer)["status"] == status_of(answer)
    assert (await api.mine.call("GET", "/healthz")).status == 200


async def test_a_compressed_body_is_never_unpacked(api: ApiServer) -> None:
    """A gzip bomb is refused by its header, with a declared length and in chunks."""
    bomb = gzip.compress(b"0" * 10_000_000)
    answer = await raw(api, post(api, bomb, Content_Encoding="gzip"))
    assert status_of(answer) == 415


async def test_a_body_without_end_is_cut_at_the_limit(api: ApiServer) -> None:
    """A chunked body is refused as soon as it is beyond the limit."""
    head = post(api, b"", Transfer_Encoding="chunked", Content_Length="")
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    answer = await raw(api, head, *([chunk] * 6))
    assert status_of(answer) == 413


async def test_an_unauthenticated_client_cannot_send_more_than_the_limit(api: ApiServer) -> None:
    """Without a key a large body is refused before it is read."""
    answer = await raw(api, post(api, b"x" * 1000, Authorization="", Content_Length="100000000"))
    assert status_of(answer) == 401
    inbound = await raw(api, post(api, b"x", path="/channels/chn_1/inbound", Content_Length="300000"))
    assert status_of(inbound) == 413


async def test_a_slow_body_is_not_waited_for(short_body_deadline_api: ApiServer) -> None:
    """A body that does not arrive in time is a 408."""
    request = post(short_body_deadline_api, b"{", Content_Length="100")
    assert status_of(await raw(short_body_deadline_api, request)) == 408


@pytest.mark.parametrize(
    ("head", "statuses"),
    [(b"GET / HTTP/1.1\r\nHost: a\r\n", (0, 408)), (b"", (0,)), (b"\r\n\r\n\r\n", (0,))],
)
async def test_a_slow_head_is_not_waited_for(
    short_header_deadline_api: ApiServer, head: bytes, statuses: tuple[int, ...]
) -> None:
    """A connection that never finishes its request head, or sends nothing, is closed; others are served."""
    api = short_header_deadline_api
    answer = await raw(api, head)
    assert status_of(answer) in statuses, answer
    assert bool(answer) == bool(status_of(answer))
    assert (await api.mine.call("GET", "/healthz")).status == 200


async def test_silent_connections_do_not_keep_others_out(short_header_deadline_api: ApiServer) -> None:
    """Many half-open connections are closed, and other requests are answered in the meantime."""
    api = short_header_deadline_api
    silent = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(60)]
    for _reader, writer in silent:
        writer.write(b"POST /accounts HTTP/1.1\r\nHost: a\r\n")
    for _ in range(20):
        assert (await api.mine.call("GET", "/accounts/me")).status == 200
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(_until_closed(reader) for reader, _writer in silent))
    for _reader, writer in silent:
        writer.close()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionResetError:
        return


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1:{port}", "127.0.0.1:{port}", 201),
        ("http://localhost:{port}", "localhost:{port}", 201),
        ("http://[::1]:{port}", "[::1]:{port}", 201),
        ("https://console.example", "127.0.0.1:{port}", 201),
        ("https://bots.example", "bots.example", 201),
        ("http://127.0.0.1:{port}", "localhost:{port}", 403),
        ("http://127.0.0.1", "127.0.0.1:{port}", 403),
        ("http://127.0.0.1:1", "127.0.0.1:{port}", 403),
        ("http://rebound.example:{port}", "rebound.example:{port}", 403),
        ("http://127.0.0.1.evil.example", "127.0.0.1:{port}", 403),
        ("https://console.example.evil.example", "127.0.0.1:{port}", 403),
        ("https://evil-console.example", "127.0.0.1:{port}", 403),
        ("https://console.example:8443", "127.0.0.1:{port}", 403),
        ("http://console.example", "127.0.0.1:{port}", 403),
        ("HTTPS://CONSOLE.EXAMPLE", "127.0.0.1:{port}", 403),
        ("https://console.example/", "127.0.0.1:{port}", 403),
        ("https://console.example, https://evil.example", "127.0.0.1:{port}", 403),
        ("null", "127.0.0.1:{port}", 403),
        ("", "127.0.0.1:{port}", 201),
        ("file://", "127.0.0.1:{port}", 403),
    ],
)
async def test_only_own_origins_change_anything(tmp_path: Path, origin: str, host: str, status: int) -> None:
    """A browser's origin must be listed, public, or this very address; anything like it is refused."""
    listed = frozenset({"https://console.example"})
    async with open_api_server(tmp_path, allowed_origins=listed, public_url="https://bots.example/") as face:
        headers = {"Host": host.format(port=face.port), "Origin": origin.format(port=face.port)}
        answer = await raw(face, post(face, b'{"name": "a"}', **headers))
    assert status_of(answer) == status, answer


async def test_an_address_is_locked_after_too_many_failures(tmp_path: Path) -> None:
    """After thirty failures, in any mix of fields, further attempts get 429; a proven key still works."""
    async with open_api_server(tmp_path, bounds=WebLimits(auth_failures=30)) as face:
        assert (await face.mine.call("GET", "/accounts/me")).status == 200
        mixed = [
            {"Authorization": "Bearer dvk_" + "a" * 43},
            {"Authorization": "Bearer wrong", "X-Forwarded-For": "203.0.113.9"},
            {"Authorization": "Bearer wrong", "X-Forwarded-For": "::ffff:127.0.0.1"},
        ]
        seen = [
            (await face.anonymous.call("GET", "/accounts/me", **mixed[turn % 3])).status for turn in range(31)
        ]
        operator = await face.operator.call("POST", "/accounts", {"name": "new"})
        proven = await face.mine.call("GET", "/accounts/me")
    assert seen == [401] * 30 + [429]
    assert operator.status == 429
    assert int(operator.headers["Retry-After"]) > 0
    assert proven.status == 200


TREES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=4),
    max_leaves=20,
)
CONFIGS = some.fixed_dictionaries(
    {}, optional={"name": TREES, "config": TREES, "url": TREES, "events": TREES}
)


PATHS = ("/accounts/me/agents", "/accounts/me/sandboxes", "/accounts/me/webhooks", "/accounts/me/channels")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    path=some.sampled_from(PATHS),
    body=some.binary(max_size=200) | (TREES | CONFIGS).map(lambda tree: json.dumps(tree).encode()),
)
async def test_no_body_breaks_anything(api: ApiServer, path: str, body: bytes) -> None:
    """Bytes and trees of every shape are accepted or refused, without a server error."""
    answer = await raw(api, post(api, body, path=path))
    assert status_of(answer) in range(200, 500), (path, body, answer)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(path=some.binary(min_size=1, max_size=60), query=some.binary(max_size=60))
async def test_no_path_breaks_anything(api: ApiServer, path: bytes, query: bytes) -> None:
    """Any text in place of an id, raw or escaped, is not found or refused."""
    for written in (path, b"".join(b"%%%02x" % byte for byte in path)):
        request = b"GET /accounts/me/agents/" + written + b"?cursor=" + query + b" HTTP/1.1\r\n"
        head = f"Host: a\r\nAuthorization: Bearer {api.mine.key}\r\nConnection: close\r\n\r\n".encode()
        answer = await raw(api, request + head)
        assert answer == b"" or status_of(answer) in range(200, 500), (path, query, answer)
