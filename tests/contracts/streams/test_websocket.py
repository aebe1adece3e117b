"""What the WebSocket promises to its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from delivery.broker.memory_events import MemoryEvents
from delivery.events.event import Event, EventType
from stream_server import KEY, READ_ONLY, RETAINED, StreamServer, append_events, stream_server

Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def open_socket(face: StreamServer, key: str = KEY) -> AsyncIterator[Socket]:
    """Open a socket with a key in the header."""
    async with face.http(key) as session, session.ws_connect("/ws") as socket:
        yield socket


async def send_and_receive(socket: Socket, frame: Any) -> dict[str, Any]:
    """Send a frame and return the next one that comes."""
    await socket.send_json(frame)
    return await receive_frame(socket)


async def receive_frame(socket: Socket) -> dict[str, Any]:
    """Return the next frame."""
    frame: dict[str, Any] = await socket.receive_json(timeout=10)
    return frame


async def receive_until(socket: Socket, kind: str) -> list[dict[str, Any]]:
    """Return the frames up to the first of a kind."""
    frames = [await receive_frame(socket)]
    while frames[-1]["type"] != kind:
        frames.append(await receive_frame(socket))
    return frames


async def wait_closed(socket: Socket) -> int | None:
    """Wait until the server closes, and return its code."""
    async with asyncio.timeout(15):
        while not socket.closed:
            await socket.receive()
    return socket.close_code


async def test_a_client_replays_and_goes_on_live(server: StreamServer, events: MemoryEvents) -> None:
    """subscribed, the missed events, caught_up, and then what happens."""
    seqs = await append_events(events, 3)
    async with open_socket(server) as socket:
        first = await send_and_receive(
            socket, {"type": "subscribe", "conversation": "cnv_a", "after": seqs[0]}
        )
        assert first == {
            "type": "subscribed",
            "conversation": "cnv_a",
            "epoch": "e1",
            "first_seq": seqs[0],
            "last_seq": seqs[2],
        }
        frames = await receive_until(socket, "caught_up")
        assert [frame["seq"] for frame in frames] == [seqs[1], seqs[2], seqs[2]]
        assert {key: frames[0][key] for key in ("v", "n", "type", "data")} == {
            "v": 1,
            "n": 2,
            "type": "job.started",
            "data": {"number": 2},
        }
        later = await append_events(events, 1)
        assert (await receive_frame(socket))["seq"] == later[0]


async def test_batches_come_when_asked_for(server: StreamServer, events: MemoryEvents) -> None:
    """With batch one frame holds several events."""
    seqs = await append_events(events, 5)
    async with open_socket(server) as socket:
        await send_and_receive(
            socket, {"type": "subscribe", "conversation": "cnv_a", "after": 0, "batch": True}
        )
        frames = await receive_until(socket, "caught_up")
        assert [frame["type"] for frame in frames] == ["events", "caught_up"]
        assert [item["seq"] for item in frames[0]["items"]] == seqs


@pytest.mark.parametrize(
    ("after", "epoch", "expected"),
    [
        (1, None, "gap"),
        (0, None, "gap"),
        (10_000, None, "reset"),
        (9, "e0", "reset"),
        ("e0-9", None, "reset"),
        ("e1-9", None, "job.started"),
        (9, "e1", "job.started"),
    ],
)
async def test_a_position_out_of_range_is_answered_in_words(
    server: StreamServer, events: MemoryEvents, after: Any, epoch: str | None, expected: str
) -> None:
    """Trimmed history is a gap with its first and last missing seq; a foreign position is a reset."""
    await append_events(events, RETAINED + 4)
    async with open_socket(server) as socket:
        frame = {"type": "subscribe", "conversation": "cnv_a", "after": after}
        await send_and_receive(socket, frame | ({"epoch": epoch} if epoch else {}))
        answer = await receive_frame(socket)
    assert answer["type"] == expected
    if expected == "gap":
        assert (answer["from"], answer["to"]) == (after + 1, 4)
        assert answer["snapshot"] == "/conversations/cnv_a/snapshot"
    if expected == "reset":
        assert answer["epoch"] == "e1"


async def test_deltas_can_be_left_out(server: StreamServer, events: MemoryEvents) -> None:
    """A client that does not want deltas gets none."""
    async with open_socket(server) as socket:
        await send_and_receive(socket, {"type": "subscribe", "conversation": "cnv_a", "deltas": False})
        await receive_until(socket, "caught_up")
        await events.publish_transient(
            Event.now(EventType.MESSAGE_DELTA, "cnv_a", {"message": "m", "text": "x"}), account="acc_1"
        )
        await append_events(events, 1)
        assert (await receive_frame(socket))["type"] == "job.started"


async def test_unsubscribing_ends_the_events(server: StreamServer, events: MemoryEvents) -> None:
    """After unsubscribe nothing of the conversation comes any more, and twice is an error."""
    async with open_socket(server) as socket:
        await send_and_receive(socket, {"type": "subscribe", "conversation": "mine"})
        await receive_until(socket, "caught_up")
        await socket.send_json({"type": "unsubscribe", "conversation": "mine"})
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"
        await append_events(events, 1, "cnv_mine")
        answer = await send_and_receive(socket, {"type": "unsubscribe", "conversation": "mine"})
        assert (answer["type"], answer["code"]) == ("error", "not_found")


async def test_speaking_is_accepted_with_the_clients_id(server: StreamServer) -> None:
    """Send, approve and cancel reach the gateway; a refusal names the frame it is about."""
    async with open_socket(server) as socket:
        sent = {"type": "send", "conversation": "mine", "text": "hello", "id": "c-1"}
        assert await send_and_receive(socket, sent) == {
            "type": "accepted",
            "id": "c-1",
            "turn": "trn_1",
            "conversation": "cnv_mine",
        }
        refused = await send_and_receive(socket, sent | {"text": "too much", "id": "c-2"})
        assert (refused["code"], refused["id"]) == ("too_many", "c-2")
        await socket.send_json({"type": "approve", "approval": "apr_1", "decision": "approve"})
        await socket.send_json({"type": "cancel", "turn": "trn_1"})
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"
    assert [one.text for one in server.sent] == ["hello"]
    assert [one.decision for one in server.decided] == ["approve"]
    assert [one.turn for one in server.cancelled] == ["trn_1"]


async def test_a_key_that_may_only_read_cannot_speak(server: StreamServer) -> None:
    """Scopes hold on the socket as they do over HTTP."""
    async with open_socket(server, READ_ONLY) as socket:
        await send_and_receive(socket, {"type": "subscribe", "conversation": "mine"})
        await receive_until(socket, "caught_up")
        answer = await send_and_receive(socket, {"type": "send", "text": "hello", "id": "1"})
        assert (answer["code"], answer["id"]) == ("forbidden", "1")


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "subscribe"},
        {"type": "subscribe", "conversation": 3},
        {"type": "subscribe", "conversation": "cnv_a", "after": -1},
        {"type": "subscribe", "conversation": "cnv_a", "after": True},
        {"type": "subscribe", "conversation": "cnv_a", "after": "x"},
        {"type": "subscribe", "conversation": "cnv_a", "unknown": 1},
        {"type": "subscribe", "conversation": ""},
        {"type": "send", "text": "", "id": "1"},
        {"type": "send", "text": "x"},
        {"type": "approve", "approval": "apr_1", "decision": "perhaps"},
        {"type": "auth", "key": KEY},
    ],
)
async def test_a_wrong_frame_is_an_error_and_the_connection_stays(server: StreamServer, frame: Any) -> None:
    """A known frame with wrong fields gets an error; nothing else happens."""
    async with open_socket(server) as socket:
        answer = await send_and_receive(socket, frame)
        assert (answer["type"], answer["code"]) == ("error", "invalid")
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '"x"', "null", "{}", '{"type":1}', '{"type":"dance"}', "[" * 5000]
)
async def test_what_is_no_frame_closes_with_4400(server: StreamServer, text: str) -> None:
    """Text that is no frame ends the connection, with the reason."""
    async with open_socket(server) as socket:
        await socket.send_str(text)
        assert await wait_closed(socket) == 4400


async def test_binary_and_oversize_frames_end_the_connection(server: StreamServer) -> None:
    """Frames are text of at most 64 KiB."""
    async with open_socket(server) as socket:
        await socket.send_bytes(b'{"type":"ping"}')
        assert await wait_closed(socket) == 4400
    async with open_socket(server) as socket:
        await socket.send_str(json.dumps({"type": "send", "id": "1", "text": "x" * 70_000}))
        assert await wait_closed(socket) == 1009


async def test_a_key_may_come_in_the_first_frame(server: StreamServer) -> None:
    """Browsers cannot set headers: the first frame authenticates."""
    async with open_socket(server, "") as socket:
        await socket.send_json({"type": "auth", "key": KEY})
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"


@pytest.mark.parametrize("frame", [{"type": "ping"}, {"type": "auth", "key": "bad"}])
async def test_an_unauthenticated_client_is_closed_with_4401(server: StreamServer, frame: Any) -> None:
    """A wrong key, or another frame before the key, ends the connection."""
    async with open_socket(server, "") as socket:
        await socket.send_json(frame)
        assert await wait_closed(socket) == 4401


async def test_a_wrong_key_in_the_header_is_401(server: StreamServer) -> None:
    """The upgrade is refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with open_socket(server, "bad"):
            pass
    assert caught.value.status == 401


async def test_a_revoked_key_is_cut(server: StreamServer) -> None:
    """A socket whose key is revoked is closed with 4401, wherever the revocation happened."""
    async with open_socket(server) as socket:
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"
        del server.valid[KEY]
        async with asyncio.timeout(5):
            assert await wait_closed(socket) == 4401


async def test_a_socket_ends_with_a_scope_of_its_key(server: StreamServer) -> None:
    """A key that loses a scope loses its socket, which could send and decide; another connection may read."""
    async with open_socket(server) as socket, open_socket(server, READ_ONLY) as reading:
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"
        server.valid[KEY] = frozenset({"read"})
        await server.readers.check_keys(server.live_scopes)
        async with asyncio.timeout(5):
            assert await wait_closed(socket) == 4403
        assert (await send_and_receive(reading, {"type": "ping"}))["type"] == "pong"
    async with open_socket(server) as socket:
        answer = await send_and_receive(socket, {"type": "send", "text": "hi", "id": "1"})
        assert answer["code"] == "forbidden"


async def test_at_most_sixteen_subscriptions(server: StreamServer) -> None:
    """The seventeenth conversation is one too many; one already followed is not counted twice."""
    async with open_socket(server) as socket:
        for number in range(16):
            await socket.send_json({"type": "subscribe", "conversation": f"cnv_{number}"})
            await receive_until(socket, "caught_up")
        answer = await send_and_receive(socket, {"type": "subscribe", "conversation": "cnv_17"})
        assert (answer["code"], answer["conversation"]) == ("too_many", "cnv_17")
        assert (await send_and_receive(socket, {"type": "subscribe", "conversation": "cnv_3"}))[
            "type"
        ] == "subscribed"


async def test_an_unknown_conversation_is_not_found(server: StreamServer) -> None:
    """What is not there, or another's, is not found."""
    async with open_socket(server) as socket:
        answer = await send_and_receive(socket, {"type": "subscribe", "conversation": "nobody's"})
        assert (answer["code"], answer["conversation"]) == ("not_found", "nobody's")


async def test_a_stopping_gateway_says_that_it_restarts(events: MemoryEvents) -> None:
    """Open sockets are closed with 1012 when the gateway stops."""
    async with stream_server(events) as face, open_socket(face) as socket:
        await send_and_receive(socket, {"type": "subscribe", "conversation": "mine"})
        await face.readers.close_all()
        assert await wait_closed(socket) == 1012


async def test_an_absent_broker_is_reported_over_http_and_awaited_on_the_socket(
    server: StreamServer, events: MemoryEvents
) -> None:
    """A page is 503 while NATS is unavailable; a subscription begins when it is back."""
    events.unreachable = True
    async with server.http() as session, session.get("/conversations/cnv_a/events") as answer:
        assert answer.status == 503
    async with open_socket(server) as socket:
        await socket.send_json({"type": "subscribe", "conversation": "cnv_a"})
        assert (await send_and_receive(socket, {"type": "ping"}))["type"] == "pong"
        events.unreachable = False
        assert (await receive_frame(socket))["type"] == "subscribed"
