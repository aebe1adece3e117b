"""G8: the WebSocket follows RFC 6455, whatever frames it gets."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import AsyncIterator

import pytest

from delivery.broker.memory_events import MemoryEvents
from delivery.database.engine import DatabaseUnavailable
from delivery.errors import BrokerUnreachable
from delivery.exhaustion import EXHAUSTED, Resource
from raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, RawSocket, raw_socket
from stream_server import KEY, stream_server

PING_FRAME = json.dumps({"type": "ping"}).encode()


@pytest.fixture
async def raw() -> AsyncIterator[RawSocket]:
    """Connect to a face."""
    async with stream_server(MemoryEvents()) as face, raw_socket(face.url, KEY) as raw:
        yield raw


async def test_a_fragmented_message_is_one(raw: RawSocket) -> None:
    """Fragments are joined, and a control frame may come between them."""
    raw.frame(TEXT, PING_FRAME[:4], final=False)
    raw.frame(PING, b"between")
    raw.frame(CONTINUATION, PING_FRAME[4:9], final=False)
    raw.frame(CONTINUATION, PING_FRAME[9:])
    assert await raw.receive() == (PONG, b"between")
    opcode, body = await raw.receive()
    assert (opcode, json.loads(body)) == (TEXT, {"type": "pong"})


async def test_a_ping_is_answered_with_its_own_body(raw: RawSocket) -> None:
    """A pong repeats what the ping held, up to 125 bytes."""
    for body in (b"", b"x", b"y" * 125):
        raw.frame(PING, body)
        assert await raw.receive() == (PONG, body)


async def test_an_unasked_pong_is_nothing(raw: RawSocket) -> None:
    """A pong that answers no ping is ignored."""
    raw.frame(PONG, b"?")
    raw.send_frame({"type": "ping"})
    assert (await raw.receive())[0] == TEXT


@pytest.mark.parametrize(
    ("opcode", "body", "options", "code"),
    [
        (TEXT, b"\xff\xfe{}", {}, 1007),
        (TEXT, b'"\xed\xa0\x80"', {}, 1007),
        (CONTINUATION, b"{}", {}, 1002),
        (TEXT, b"{}", {"reserved": 4}, 1002),
        (0x3, b"", {}, 1002),
        (0xB, b"", {}, 1002),
        (PING, b"x" * 126, {}, 1002),
        (PING, b"x", {"final": False}, 1002),
        (BINARY, b"{}", {}, 4400),
        (TEXT, b"x" * 65_535, {}, 4400),
    ],
)
async def test_a_broken_frame_closes_with_its_code(
    raw: RawSocket, opcode: int, body: bytes, options: dict[str, int], code: int
) -> None:
    """Each violation has the close code that the protocol gives it."""
    raw.frame(opcode, body, **options)  # type: ignore[arg-type] # the options differ in type
    assert (await raw.wait_closed())[0] == code


async def test_a_message_of_fragments_is_bounded_as_a_whole(raw: RawSocket) -> None:
    """Fragments that add up to more than 64 KiB are too much."""
    raw.frame(TEXT, b"x" * 40_000, final=False)
    raw.frame(CONTINUATION, b"x" * 40_000)
    assert (await raw.wait_closed())[0] == 1009


@pytest.mark.parametrize(("body", "code"), [(struct.pack("!H", 1000) + b"bye", 1000), (b"", 1000)])
async def test_a_close_is_answered(raw: RawSocket, body: bytes, code: int) -> None:
    """A closing client gets a close frame."""
    raw.frame(CLOSE, body)
    opcode, answer = await raw.receive()
    assert opcode == CLOSE
    assert not answer or struct.unpack("!H", answer[:2])[0] in {code, 1000}


@pytest.mark.parametrize("body", [b"\x03", struct.pack("!H", 999), struct.pack("!H", 1005), b"\x03\xe8\xff"])
async def test_a_broken_close_is_a_protocol_error(raw: RawSocket, body: bytes) -> None:
    """A close frame with half a code, a forbidden code or a reason that is no text is refused."""
    raw.frame(CLOSE, body)
    assert (await raw.wait_closed())[0] in {1002, 1007}


def database_failure(reason: str, cause: Exception | None = None) -> DatabaseUnavailable:
    """Return the error of a database, with its cause."""
    error = DatabaseUnavailable(reason)
    error.__cause__ = cause
    return error


FAILURES = [
    (database_failure("it cannot write", OSError(errno.ENOSPC, "full")), EXHAUSTED[Resource.DISK]),
    (database_failure("at db.internal:5432"), "the database does not answer; try again soon"),
    (BrokerUnreachable("at nats.internal:4222"), "the event log does not answer; try again soon"),
]


@pytest.mark.parametrize(("failure", "detail"), FAILURES)
async def test_an_unavailable_service_is_named_without_its_address(failure: Exception, detail: str) -> None:
    """A client reads what is wrong, such as a full disk, and no more of the error."""
    async with stream_server(MemoryEvents()) as face, raw_socket(face.url, KEY) as raw:
        face.failure = failure
        raw.send_frame({"type": "send", "conversation": "cnv_1", "text": "hi", "id": "m1"})
        _opcode, body = await raw.receive()
    assert json.loads(body) == {"type": "error", "code": "unavailable", "detail": detail}
