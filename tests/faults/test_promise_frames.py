"""G8: frames that break RFC 6455 end their own connection with the right code, and no other."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator

import pytest

from delivery.broker.memory_events import MemoryEvents
from raw_socket import CLOSE, CONTINUATION, PING, PONG, TEXT, RawSocket, raw_socket
from stream_server import KEY, StreamServer, stream_server

VALID = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
FORBIDDEN = (0, 999, 1005, 1015, 2999)
LENIENT = (1006, 5000, 65535)
"""Codes that must not be sent either, and that aiohttp takes for a close like any other."""

PING_FRAME = json.dumps({"type": "ping"}).encode()


@pytest.fixture
async def server() -> AsyncIterator[StreamServer]:
    """Serve an empty stream."""
    async with stream_server(MemoryEvents()) as face:
        yield face


async def _end(raw: RawSocket) -> int:
    """Return the close code, 1006 when the connection is cut without one."""
    try:
        return (await raw.wait_closed())[0]
    except (asyncio.IncompleteReadError, ConnectionError):
        return 1006


async def _assert_alive(face: StreamServer) -> None:
    async with raw_socket(face.url, KEY) as other:
        other.send_frame({"type": "ping"})
        assert await other.receive() == (TEXT, b'{"type":"pong"}')


async def test_g8_every_code_of_a_close_is_judged(server: StreamServer) -> None:
    """Codes that may be sent are answered by a close; those that may not are a protocol error."""
    for code in (*VALID, *FORBIDDEN, *LENIENT):
        async with raw_socket(server.url, KEY) as raw:
            raw.frame(CLOSE, struct.pack("!H", code) + b"bye")
            ended = await _end(raw)
        assert ended == 1002 if code in FORBIDDEN else ended in {code, 1000}, (code, ended)
    await _assert_alive(server)


@pytest.mark.parametrize(
    "text",
    [
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xed\xbf\xbf",
        b"\x80",
        b"\xce\xba\xe1\xbd",
        b"\xf8\x88\x80\x80\x80",
    ],
)
async def test_g8_text_that_is_none_is_refused_whole_and_in_pieces(server: StreamServer, text: bytes) -> None:
    """Overlong, too large, half and stray sequences are 1007, also when a fragment ends within them."""
    for pieces in ([text], [text[:1], text[1:]]):
        async with raw_socket(server.url, KEY) as raw:
            for place, piece in enumerate(pieces):
                opcode = CONTINUATION if place else TEXT
                raw.frame(opcode, piece, final=place == len(pieces) - 1)
            assert await _end(raw) == 1007
    await _assert_alive(server)


async def test_g8_a_letter_cut_by_a_fragment_is_whole_again(server: StreamServer) -> None:
    """A letter of several bytes may be cut anywhere, with empty fragments and pings in between."""
    body = json.dumps({"type": "ping", "x": "\u03ba\N{PILE OF POO}"}, ensure_ascii=False).encode()
    async with raw_socket(server.url, KEY) as raw:
        for place in range(len(body)):
            raw.frame(CONTINUATION if place else TEXT, body[place : place + 1], final=False)
            if place % 10 == 0:
                raw.frame(CONTINUATION, b"", final=False)
                raw.frame(PING, str(place).encode())
        raw.frame(CONTINUATION, b"")
        received = [await raw.receive() for _ in range(len(range(0, len(body), 10)) + 1)]
    assert [opcode for opcode, _ in received[:-1]] == [PONG] * (len(received) - 1)
    assert received[-1][0] in {TEXT, CLOSE}


@pytest.mark.parametrize("opcode", [TEXT, 0x2])
async def test_g8_a_new_message_within_a_fragmented_one_is_refused(server: StreamServer, opcode: int) -> None:
    """Only control frames may come between the fragments of a message."""
    async with raw_socket(server.url, KEY) as raw:
        raw.frame(TEXT, b"{", final=False)
        raw.frame(opcode, PING_FRAME)
        assert await _end(raw) == 1002
    await _assert_alive(server)


@pytest.mark.parametrize("length", [2**16, 2**31, 2**62, 2**63, 2**64 - 1])
async def test_g8_a_giant_that_is_announced_is_refused_before_it_comes(
    server: StreamServer, length: int
) -> None:
    """A frame whose length alone is too much ends the connection at its head."""
    async with raw_socket(server.url, KEY) as raw:
        raw.writer.write(b"\x81\xff" + struct.pack("!Q", length) + b"mask" + b"x" * 100)
        assert await _end(raw) in {1002, 1009, 1006}
    await _assert_alive(server)


async def test_g8_a_thousand_pings_and_empty_fragments_are_borne(server: StreamServer) -> None:
    """Floods of small frames are answered or joined, and the connection goes on."""
    async with raw_socket(server.url, KEY) as raw:
        for _ in range(1000):
            raw.frame(PING, b"x")
        for _ in range(1000):
            assert await raw.receive() == (PONG, b"x")
        raw.frame(TEXT, PING_FRAME, final=False)
        for _ in range(1000):
            raw.frame(CONTINUATION, b"", final=False)
        raw.frame(CONTINUATION, b"")
        assert (await raw.receive())[0] == TEXT


async def test_g8_an_unmasked_frame_does_not_break_the_connection_of_others(server: StreamServer) -> None:
    """Unmasked frames are read, as aiohttp does; other clients are not affected."""
    async with raw_socket(server.url, KEY) as raw:
        raw.frame(TEXT, PING_FRAME, masked=False)
        assert (await raw.receive())[0] in {TEXT, CLOSE}
    await _assert_alive(server)
