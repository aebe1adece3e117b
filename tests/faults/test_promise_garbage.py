"""G15: whatever bodies and headers reach a way in, the answer is a refusal, soon, and memory stays as it is.

A thousand here, half of them for channels, whose contract has the other half; for more:
`DOVECOTE_TEST_EXAMPLES=10000 pytest tests/faults/test_promise_garbage.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from bench.meters import resident
from channel_rigs import WEBHOOK_SECRET, opened, rigged
from channels.port import Incoming
from channels.registry import installed
from gateway.web.surface import Bounds
from web_face import open_face

EXAMPLES = int(os.environ.get("DOVECOTE_TEST_EXAMPLES", "1000"))
pytestmark = pytest.mark.timeout(60 + EXAMPLES // 5)

MUCH = 64
"""Megabytes: more than anything here may cost."""

ODD = [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 5000, b'"\\ud800"', b"1e999"]
WORDS = "update_id message from chat id type event event_id team_id data token text user channel ts".split()  # noqa: SIM905
TREES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=10),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=10,
)
BODIES = (
    some.binary(max_size=100) | some.sampled_from(ODD) | TREES.map(lambda tree: json.dumps(tree).encode())
)
VALUES = some.text(max_size=40) | some.sampled_from(
    ["", "1" * 5000, "\ud800", "v0=" + "0" * 64, "0" * 128, "é", "nan", "-1", "1767225600"]
)
NAMES = [
    "x-telegram-bot-api-secret-token",
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-slack-retry-num",
    "x-signature-ed25519",
    "x-signature-timestamp",
    "content-type",
]
HEADERS = some.dictionaries(some.sampled_from(NAMES), VALUES, max_size=4)
CALM = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
)


async def _take(_: object) -> None:
    """Accept everything."""


@pytest.mark.parametrize("kind", sorted(installed()))
async def test_g15_no_post_to_a_channel_is_a_fault(kind: str) -> None:
    """Rightly signed nonsense and wrongly signed anything are 2xx, 400 or 401."""
    plugin = installed()[kind]
    statuses: set[int] = set()
    async with rigged(plugin) as rig, opened(plugin, rig.webhook_settings()) as connection:
        before = resident(os.getpid())

        @settings(CALM, max_examples=EXAMPLES // 2)
        @given(BODIES, HEADERS, some.booleans())
        def post(body: bytes, headers: dict[str, str], signed: bool) -> None:
            right = dict(rig.posted(body, secret=WEBHOOK_SECRET).headers) if signed else {}
            request = Incoming(headers={**right, **headers} if headers else right, body=body)
            statuses.add(asyncio.run(connection.inbox.receive(request, _take)).status)

        await asyncio.to_thread(post)
        assert resident(os.getpid()) - before < MUCH
    assert statuses <= {200, 400, 401}
    assert 401 in statuses


PATHS = (
    "/accounts/me/agents",
    "/accounts/me/webhooks",
    "/accounts/me/keys",
    "/accounts",
    "/channels/chn_1/inbound",
)
LINES = some.lists(
    some.sampled_from(
        [
            b"Content-Type: application/json",
            b"Content-Type: text/plain",
            b"Content-Encoding: gzip",
            b"Idempotency-Key: \xff",
            b"Origin: null",
            b"Cookie: a=b",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"X: " + b"y" * 9000,
        ]
    ),
    max_size=3,
)


async def test_g15_no_request_is_a_fault(tmp_path: Path) -> None:
    """Bodies, methods and headers of every kind over a real connection: never a 5xx, never a hang."""
    quick = Bounds(auth_failures=10**9, header_deadline=2.0, body_deadline=0.5, requests_per_minute=10**6)
    async with open_face(tmp_path, bounds=quick) as face:
        before, statuses = resident(os.getpid()), set[int]()

        async def ask(request: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
            writer.write(request)
            async with asyncio.timeout(20):
                try:
                    answer = await reader.read()
                except ConnectionResetError:
                    answer = b""
            writer.close()
            statuses.add(int(answer.split(b" ", 2)[1]) if answer else 0)

        loop = asyncio.get_running_loop()

        @CALM
        @given(
            some.sampled_from(PATHS),
            some.sampled_from(["POST", "PATCH", "PUT"]),
            BODIES,
            LINES,
            some.booleans(),
        )
        def send(path: str, method: str, body: bytes, lines: list[bytes], known: bool) -> None:
            key = f"Authorization: Bearer {face.mine.key if known else 'x'}".encode()
            length = f"Content-Length: {len(body)}".encode()
            head = [
                f"{method} {path} HTTP/1.1".encode(),
                b"Host: a",
                b"Connection: close",
                key,
                length,
                *lines,
            ]
            whole = b"\r\n".join([*head, b"", b""]) + body
            asyncio.run_coroutine_threadsafe(ask(whole), loop).result(30)

        await asyncio.to_thread(send)
        assert (await face.mine.ask("GET", "/accounts/me")).status == 200
        assert resident(os.getpid()) - before < MUCH
    assert not {status for status in statuses if status >= 500}
    assert {400, 401} <= statuses
