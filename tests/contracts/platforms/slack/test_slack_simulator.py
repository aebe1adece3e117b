"""Slack's own SDK finds a Slack in our simulator: two that agree were not written by one hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.simulator import Simulator
from channels.slack.simulator.api.rate_limits import Rate
from channels.slack.simulator.api.scopes import ALL_SCOPES
from channels.slack.simulator.outgoing import signature_headers
from slack_connections import slack_simulator  # noqa: F401 - fixtures

ROOM = "C0ROOM"
MODAL = {
    "type": "modal",
    "title": {"type": "plain_text", "text": "Why?"},
    "submit": {"type": "plain_text", "text": "Send"},
    "blocks": [
        {
            "type": "input",
            "block_id": "b",
            "label": {"type": "plain_text", "text": "Words"},
            "element": {"type": "plain_text_input", "action_id": "a"},
        }
    ],
}


@pytest.fixture
def client(simulator: Simulator) -> AsyncWebClient:
    """Return the SDK's client with the bot's token."""
    return AsyncWebClient(token=simulator.tokens[0], base_url=f"{simulator.url}/api/", retry_handlers=[])


async def refused(answering: object, word: str) -> SlackApiError:
    """Wait for a refusal of this word."""
    with pytest.raises(SlackApiError) as caught:
        await answering  # type: ignore[misc]
    assert caught.value.response["error"] == word
    return caught.value


async def test_the_sdk_posts_edits_and_reads(simulator: Simulator, client: AsyncWebClient) -> None:
    """Messages and their metadata are where the SDK expects them."""
    assert (await client.auth_test())["user_id"] == "U0BOT"
    mark = {"event_type": "x", "event_payload": {"delivery_id": "d"}}
    sent = await client.chat_postMessage(channel=ROOM, text="hello", metadata=mark)
    await client.chat_update(channel=ROOM, ts=str(sent["ts"]), text="good day")
    (post,) = simulator.messages()
    assert (post.text, post.history, post.raw["metadata"]) == ("good day", ["hello"], mark)


async def test_the_sdk_reads_histories_in_pages(simulator: Simulator, client: AsyncWebClient) -> None:
    """Newest first, replies apart, metadata when it is asked for, the SDK's own pages one after the other."""
    mark = {"event_type": "x", "event_payload": {"delivery_id": "d"}}
    sent = await client.chat_postMessage(channel=ROOM, text="0", metadata=mark)
    for number in range(1, 5):
        await client.chat_postMessage(channel=ROOM, text=str(number))
    await client.chat_postMessage(channel=ROOM, text="reply", thread_ts=str(sent["ts"]))
    pages = [page["messages"] async for page in await client.conversations_history(channel=ROOM, limit=2)]
    assert [[one["text"] for one in page] for page in pages] == [["4", "3"], ["2", "1"], ["0"]]
    assert not [one for page in pages for one in page if "metadata" in one]
    thread = await client.conversations_replies(
        channel=ROOM, ts=str(sent["ts"]), include_all_metadata=True, oldest=str(sent["ts"])
    )
    assert [one["text"] for one in thread["messages"]] == ["0", "reply"]
    assert thread["messages"][0]["metadata"] == mark
    await refused(client.conversations_replies(channel=ROOM, ts="1.0"), "thread_not_found")


async def test_the_sdk_streams(simulator: Simulator, client: AsyncWebClient) -> None:
    """The SDK's own stream begins, grows and ends here, with its chunks."""
    thread = await simulator.say(ROOM, "tell me")
    stream = await client.chat_stream(
        channel=ROOM,
        thread_ts=thread,
        recipient_team_id="T0SIMULATED",
        recipient_user_id="U0ADA",
        buffer_size=4,
    )
    await stream.append(markdown_text="one ")
    await stream.append(markdown_text="two ")
    (post,) = simulator.messages()
    assert (post.text, post.streaming is not None) == ("one two ", True)
    await refused(client.chat_update(channel=ROOM, ts=post.ts, text="x"), "streaming_state_conflict")
    await stream.stop(markdown_text="three")
    assert (post.text, post.streaming) == ("one two three", None)
    late = client.chat_appendStream(channel=ROOM, ts=post.ts, markdown_text="four")
    await refused(late, "message_not_in_streaming_state")
    await client.chat_update(channel=ROOM, ts=post.ts, text="all")
    assert post.text == "all"


async def test_a_stream_wants_what_the_pages_say(simulator: Simulator, client: AsyncWebClient) -> None:
    """A thread that exists or none, in a channel a recipient, and 12 000 characters at the most."""
    thread = await simulator.say(ROOM, "tell me")
    place: Any = {"channel": ROOM, "thread_ts": thread}
    to_ada: Any = {"recipient_team_id": "T0SIMULATED", "recipient_user_id": "U0ADA"}
    await refused(client.chat_startStream(**place), "missing_recipient_team_id")
    await refused(
        client.chat_startStream(**place, recipient_team_id="T0OTHER", recipient_user_id="U0ADA"),
        "team_not_found",
    )
    await refused(client.chat_startStream(channel=ROOM, thread_ts="1.0", **to_ada), "invalid_thread_ts")
    assert (await client.chat_startStream(channel=ROOM, thread_ts="", **to_ada))["ok"]
    long = client.chat_startStream(**place, **to_ada, markdown_text="x" * 12_001)
    await refused(long, "msg_too_long")


async def test_the_sdk_uploads(simulator: Simulator, client: AsyncWebClient) -> None:
    """The SDK's three-step upload ends with a message, and the file states where it was shared."""
    answer = await client.files_upload_v2(channel=ROOM, filename="r.txt", content="result")
    number = answer["files"][0]["id"]
    assert simulator.world.contents[number] == b"result"
    (post,) = simulator.messages()
    shares = (await client.files_info(file=number))["file"]["shares"]
    assert shares == {"public": {ROOM: [{"ts": post.ts}]}}


async def test_the_sdk_reacts(simulator: Simulator, client: AsyncWebClient) -> None:
    """A reaction is added once and removed once."""
    ts = await simulator.say(ROOM, "hello")
    place = {"channel": ROOM, "timestamp": ts, "name": "eyes"}
    await client.reactions_add(**place)
    await refused(client.reactions_add(**place), "already_reacted")
    shown = await client.reactions_get(channel=ROOM, timestamp=ts)
    assert shown["message"]["reactions"] == [{"name": "eyes", "users": ["U0BOT"], "count": 1}]
    await client.reactions_remove(**place)
    await refused(client.reactions_remove(**place), "no_reaction")


async def test_the_sdk_opens_a_modal_once_and_soon(simulator: Simulator, client: AsyncWebClient) -> None:
    """A trigger is good for one modal and three seconds."""
    trigger = simulator.world.create_trigger("U0ADA")
    opened = await client.views_open(trigger_id=trigger, view=MODAL)
    assert simulator.open_modals()[0].id == opened["view"]["id"]
    await refused(client.views_open(trigger_id=trigger, view=MODAL), "exchanged_trigger_id")
    simulator.world.trigger_seconds = 3.0
    late = simulator.world.create_trigger("U0ADA")
    await simulator.advance(4)
    simulator.world.trigger_seconds = 60.0
    await refused(client.views_open(trigger_id=late, view=MODAL), "expired_trigger_id")
    wordy = {**MODAL, "private_metadata": "x" * 3001}
    fresh = simulator.world.create_trigger("U0ADA")
    await refused(client.views_open(trigger_id=fresh, view=wordy), "invalid_arguments")


async def test_the_sdk_sets_a_status(simulator: Simulator, client: AsyncWebClient) -> None:
    """In the thread that a private message opens, until the reply or two minutes later."""
    thread = await simulator.say("D0ADA", "hello")
    place: Any = {"channel_id": "D0ADA", "thread_ts": thread}
    await client.assistant_threads_setStatus(**place, status="is thinking…")
    assert simulator.world.status("D0ADA", thread) == "is thinking…"
    await simulator.advance(121)
    assert simulator.world.status("D0ADA", thread) == ""
    await refused(
        client.assistant_threads_setStatus(channel_id="D0ADA", thread_ts="1.0", status="x"),
        "invalid_thread_ts",
    )


async def test_the_sdk_understands_a_refusal(simulator: Simulator, client: AsyncWebClient) -> None:
    """A refusal has its word, a missing scope its name."""
    await refused(client.chat_postMessage(channel="C0NOWHERE", text="hello"), "channel_not_found")
    await simulator.grant(ALL_SCOPES - {"chat:write"})
    error = await refused(client.chat_postMessage(channel=ROOM, text="hello"), "missing_scope")
    assert error.response["needed"] == "chat:write"


async def test_each_channel_has_its_own_bucket(simulator: Simulator, client: AsyncWebClient) -> None:
    """One message a second after a short burst, a 429 with Retry-After else; other channels are not held."""
    simulator.rate_limits.rates["chat.postMessage"] = Rate(burst=2, a_second=0.1, in_room=True)
    simulator.world.room("C0OTHER")
    for _ in range(2):
        await client.chat_postMessage(channel=ROOM, text="hello")
    error = await refused(client.chat_postMessage(channel=ROOM, text="hello"), "ratelimited")
    assert error.response.status_code == 429
    assert 9 <= int(error.response.headers["Retry-After"]) <= 10
    await client.chat_postMessage(channel="C0OTHER", text="hello")
    await simulator.advance(10)
    await client.chat_postMessage(channel=ROOM, text="hello")


@pytest.fixture
async def socket_events(simulator: Simulator) -> AsyncIterator[asyncio.Queue[SocketModeRequest]]:
    """Run the SDK's Socket Mode client; its events are acknowledged and queued."""
    web = AsyncWebClient(base_url=f"{simulator.url}/api/")
    listener = SocketModeClient(app_token=simulator.tokens[1], web_client=web)
    received: asyncio.Queue[SocketModeRequest] = asyncio.Queue()

    async def listen(client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        await received.put(request)

    listener.socket_mode_request_listeners.append(listen)
    await listener.connect()  # type: ignore[no-untyped-call]
    yield received
    await listener.close()  # type: ignore[no-untyped-call]


async def test_the_sdk_listens_by_socket(
    simulator: Simulator, socket_events: asyncio.Queue[SocketModeRequest]
) -> None:
    """The SDK's Socket Mode client gets an event, acknowledges it, and does not get it again."""
    await simulator.say(ROOM, "hello")
    async with asyncio.timeout(10):
        request = await socket_events.get()
        while simulator.sockets.waiting:
            await simulator.sockets.changed.wait()
    assert (request.type, request.payload["event"]["text"]) == ("events_api", "hello")


async def test_the_sdk_follows_a_refresh(
    simulator: Simulator, socket_events: asyncio.Queue[SocketModeRequest]
) -> None:
    """On request the SDK opens another connection, and missed events arrive there."""
    await simulator.sockets.refresh("refresh_requested")
    await simulator.say(ROOM, "hello again")
    async with asyncio.timeout(20):
        request = await socket_events.get()
    assert (request.payload["event"]["text"], simulator.sockets.connected) == ("hello again", 2)


def test_the_sdk_verifies_a_signature() -> None:
    """The SDK accepts what the simulator signs."""
    headers = signature_headers("simulated-signing-secret", b"body", "application/json")
    verifier = SignatureVerifier("simulated-signing-secret")
    assert verifier.is_valid_request(b"body", headers)
    assert not verifier.is_valid_request(b"other", headers)
