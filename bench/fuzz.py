"""Send generated input to every entry point: nothing may break, hang, be accepted wrongly or grow.

    python -m bench.fuzz [--examples 10000] [--seed 1]

Input goes into each channel's inbox (rightly and wrongly signed), into the HTTP API over real connections,
into each verifier of signatures, and as frames into a WebSocket. A row of the table is one entry point: the
results with their counts, and how much memory stayed. The first input that is a fault ends the run and is
shown reduced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import struct
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as some

from api_server import open_api_server
from bench.meters import resident
from channel_rigs import open_rig
from channels.port import WebhookRequest
from channels.registry import built_in
from channels.testing.connections import open_connection
from channels.testing.rig import WEBHOOK_SECRET
from delivery.broker.memory_events import MemoryEvents
from gateway.web.http.context import WebLimits
from raw_socket import CLOSE, PING, PONG, RawSocket, raw_socket
from signature_cases import BODY, SIGNATURE_CASES
from stream_server import KEY, StreamServer, stream_server

Response = TypeVar("Response")
TIMEOUT_SECONDS = 20.0
"""Seconds after which one input counts as a hang."""

ODD_BODIES = [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 5000, b'"\\ud800"', b"1e999"]
WORDS = "update_id message from chat id type event event_id team_id data token text user channel ts".split()  # noqa: SIM905
TREES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=10),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=10,
)
BODIES = (
    some.binary(max_size=100)
    | some.sampled_from(ODD_BODIES)
    | TREES.map(lambda tree: json.dumps(tree).encode())
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


@dataclass(slots=True)
class FuzzResult:
    """The results of one entry point: statuses or codes with their counts, and the megabytes that stayed."""

    name: str
    outcomes: Counter[object] = field(default_factory=Counter)
    seconds: float = 0.0
    grown: float = 0.0
    errors: list[str] = field(default_factory=list)
    signed: bool = True
    """Whether the platform signs its posts, so that others are refused."""


class _Errors(logging.Handler):
    """Collects what a server logs about its own faults."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        self._kept.append(record.getMessage())


@contextmanager
def measure(name: str) -> Iterator[FuzzResult]:
    """Count the results, and collect the errors that the server logs."""
    result = FuzzResult(name)
    handler = _Errors(result.errors)
    logs = [logging.getLogger(one) for one in ("aiohttp.server", "asyncio")]
    for log in logs:
        log.addHandler(handler)
    begun, before = time.monotonic(), resident(os.getpid())
    try:
        yield result
    finally:
        result.seconds, result.grown = time.monotonic() - begun, resident(os.getpid()) - before
        for log in logs:
            log.removeHandler(handler)


def fuzz_settings(examples: int, number: int = 1) -> Callable[[Any], Any]:
    """Return settings that make so many examples, the same ones for the same number."""
    bounds = settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    return lambda test: seed(number)(bounds(test))


def warm_up(examples: int, number: int = 1) -> None:
    """Generate the inputs once without using them: what hypothesis itself keeps is not counted afterwards."""

    @fuzz_settings(examples, number)
    @given(BODIES, HEADERS, some.booleans())
    def ignore(_body: bytes, _headers: dict[str, str], _signed: bool) -> None:
        pass

    ignore()


async def channel(kind: str, examples: int, number: int = 1) -> FuzzResult:
    """Post generated input to a channel's inbox, rightly and wrongly signed."""
    plugin = built_in()[kind]
    async with open_rig(plugin) as rig, open_connection(plugin, rig.webhook_settings()) as connection:
        with measure(f"posts to {kind}") as result:
            result.signed = rig.signs_webhooks

            @fuzz_settings(examples, number)
            @given(BODIES, HEADERS, some.booleans())
            def post(body: bytes, headers: dict[str, str], signed: bool) -> None:
                right = dict(rig.webhook_request(body, secret=WEBHOOK_SECRET).headers) if signed else {}
                request = WebhookRequest(headers={**right, **headers} if headers else right, body=body)
                answer = asyncio.run(_with_timeout(connection.receiver.receive(request, _accept)))
                result.outcomes[answer.status] += 1
                assert answer.status in {200, 400, 401}, answer

            await asyncio.to_thread(post)
    return result


async def _accept(_: object) -> None:
    """Accept everything."""


async def _with_timeout(work: Coroutine[Any, Any, Response]) -> Response:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await work


async def api(directory: Path, examples: int, number: int = 1) -> FuzzResult:
    """Send requests of every kind over connections of their own."""
    quick = WebLimits(auth_failures=10**9, header_deadline=2.0, body_deadline=0.5, requests_per_minute=10**9)
    async with open_api_server(directory, bounds=quick) as face:
        loop = asyncio.get_running_loop()

        async def ask(request: bytes) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
            writer.write(request)
            try:
                answer = await _with_timeout(reader.read())
            except ConnectionResetError:
                answer = b""
            writer.close()
            last = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            return int(last.split(b" ", 2)[1]) if last else 0

        with measure("requests to the API") as result:

            @fuzz_settings(examples, number)
            @given(
                some.sampled_from(PATHS),
                some.sampled_from(["POST", "PATCH", "PUT"]),
                BODIES,
                LINES,
                some.booleans(),
            )
            def send(path: str, method: str, body: bytes, lines: list[bytes], known: bool) -> None:
                key = f"Authorization: Bearer {face.mine.key if known else 'x'}"
                first = [f"{method} {path} HTTP/1.1", "Host: a", "Connection: close", key]
                head = [line.encode() for line in (*first, f"Content-Length: {len(body)}")]
                whole = b"\r\n".join([*head, *lines, b"", b""]) + body
                status = asyncio.run_coroutine_threadsafe(ask(whole), loop).result(2 * TIMEOUT_SECONDS)
                result.outcomes[status] += 1
                assert status < 500, (status, whole[:2000])

            await asyncio.to_thread(send)
            assert (await face.mine.call("GET", "/accounts/me")).status == 200
    return result


def verifier(name: str, examples: int, number: int = 1) -> FuzzResult:
    """Give a verifier generated input, nearly right input too; it must refuse and never raise."""
    check, headers, header = SIGNATURE_CASES[name]
    right = headers()
    assert check(right, BODY)

    def near(value: str) -> some.SearchStrategy[str]:
        cut = some.integers(0, len(value)).map(lambda place: value[:place])
        more = some.text(max_size=8).map(lambda extra: f"{value}{extra}")
        return VALUES | some.text(max_size=200) | some.just(value) | cut | more

    shown = some.fixed_dictionaries({one: near(value) for one, value in right.items()})
    bodies = some.just(BODY) | BODIES

    with measure(f"signatures of {name}") as result:

        @fuzz_settings(examples, number)
        @given(shown, bodies)
        def judge(given_headers: Mapping[str, str], body: bytes) -> None:
            passed = check(given_headers, body)
            result.outcomes["passed" if passed else "refused"] += 1
            assert not passed or _is_right(right, given_headers, header, body), given_headers

        judge()
    return result


def _is_right(right: Mapping[str, str], given_headers: Mapping[str, str], header: str, body: bytes) -> bool:
    """Whether this is what was signed; a list of signatures may hold more than the right one."""
    signed = {name: value for name, value in right.items() if name != header}
    same = all(given_headers[name] == value for name, value in signed.items())
    return body == BODY and same and given_headers[header].startswith(right[header])


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzFrame:
    """One frame: `claims` is the length its head names, where that is not its own."""

    opcode: int
    body: bytes
    final: bool
    reserved: int
    masked: bool
    claims: int | None


TEXTS = some.sampled_from(
    [
        b'{"type":"ping"}',
        b'{"type":"subscribe","conversation":"cnv_a","after":0}',
        b'{"type":"subscribe","conversation":"*","after":"x-9"}',
        b'{"type":"unsubscribe","conversation":"cnv_a"}',
        b'{"type":"send","text":"hi","id":"1"}',
        b'{"type":"auth","key":"x"}',
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"x" * 70_000,
    ]
)
CLOSES = some.integers(0, 65535).map(lambda code: struct.pack("!H", code) + b"bye")
FRAMES = some.builds(
    FuzzFrame,
    opcode=some.sampled_from([0, 1, 1, 1, 2, 8, 9, 10]) | some.integers(0, 15),
    body=TEXTS | BODIES | CLOSES,
    final=some.sampled_from([True, True, False]),
    reserved=some.sampled_from([0, 0, 0, 0, 1, 2, 4, 7]),
    masked=some.sampled_from([True, True, True, False]),
    claims=some.sampled_from([None] * 8 + [0, 126, 2**16, 2**31, 2**63, 2**64 - 1]),
)
CODES = frozenset({1000, 1002, 1003, 1006, 1007, 1009, 1010, 4400, *range(3000, 5000)})
"""How a connection may end; 1006 is one that is cut. What a peer closed with may come back, 1011 never."""


async def sockets(examples: int, number: int = 1) -> FuzzResult:
    """Write frames of every kind, each list into its own connection, and check how that ends."""
    async with stream_server(MemoryEvents()) as face:
        loop = asyncio.get_running_loop()
        with measure("frames to a WebSocket") as result:

            @fuzz_settings(examples, number)
            @given(some.lists(FRAMES, min_size=1, max_size=6))
            def send(pieces: list[FuzzFrame]) -> None:
                code = asyncio.run_coroutine_threadsafe(_send_frames(face, pieces), loop).result(
                    2 * TIMEOUT_SECONDS
                )
                result.outcomes[code] += 1
                assert code in CODES or code in _closes(pieces), code

            await asyncio.to_thread(send)
            assert await _send_frames(face, []) == 1006, "one that says nothing odd is answered"
    return result


async def _send_frames(server: StreamServer, frames: list[FuzzFrame]) -> int:
    """Write the frames and the end of the connection; return its close code, 1006 without one."""
    async with raw_socket(server.url, KEY) as raw:
        for piece in frames:
            raw.frame(
                piece.opcode,
                piece.body,
                final=piece.final,
                reserved=piece.reserved,
                masked=piece.masked,
                claims=piece.claims,
            )
        raw.frame(PING, b"the end")
        raw.writer.write_eof()
        return await _with_timeout(_ended(raw, answers=not frames))


async def _ended(raw: RawSocket, *, answers: bool) -> int:
    try:
        while True:
            opcode, body = await raw.receive()
            answers = answers and opcode != PONG
            if opcode == CLOSE:
                return int(struct.unpack("!H", body[:2])[0]) if body else 1000
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0 if answers else 1006


def _closes(frames: list[FuzzFrame]) -> set[int]:
    """Return the codes that the frames themselves close with."""
    return {struct.unpack("!H", piece.body[:2])[0] for piece in frames if len(piece.body) >= 2}


def row(result: FuzzResult) -> str:
    """Return a line of the table."""
    shown = ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(result.outcomes.items(), key=str))
    cells = (result.name, f"{sum(result.outcomes.values()):,}", shown, len(result.errors))
    return f"| {' | '.join(str(cell) for cell in cells)} | {result.grown:.0f} | {result.seconds:.0f} |"


async def run_all(directory: Path, examples: int, number: int) -> AsyncIterator[FuzzResult]:
    """Fuzz every entry point, one after the other."""
    for kind in sorted(built_in()):
        yield await channel(kind, examples, number)
    yield await api(directory, examples, number)
    for name in sorted(SIGNATURE_CASES):
        yield await asyncio.to_thread(verifier, name, examples, number)
    yield await sockets(examples, number)


async def main(examples: int, number: int) -> int:
    """Print a table; returns 1 if a server logged a fault of its own."""
    print("| into | inputs | what came out | faults logged | MB grown | seconds |\n|---|---|---|---|---|---|")
    found: list[str] = []
    await asyncio.to_thread(warm_up, examples, number)
    with tempfile.TemporaryDirectory() as directory:
        async for result in run_all(Path(directory), examples, number):
            print(row(result), flush=True)
            found += result.errors
    parts = [f"{name} {version(name)}" for name in ("hypothesis", "aiohttp")]
    print(f"\nSeed {number}. Python {platform.python_version()}, {', '.join(parts)}.")
    print(*sorted(set(found))[:20], sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    raise SystemExit(asyncio.run(main(chosen.examples, chosen.seed)))
