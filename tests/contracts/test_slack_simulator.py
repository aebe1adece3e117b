"""Slack's own SDK finds a Slack in our simulator: two that agree were not written by one hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.simulator import Simulator, simulate
from channels.slack.simulator.outgoing import signed

ROOM = "C0ROOM"


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Slack with one channel."""
    async with simulate() as simulator:
        simulator.world.room(ROOM)
        yield simulator


@pytest.fixture
def client(simulator: Simulator) -> AsyncWebClient:
    """Return the SDK's client with the bot's token."""
    return AsyncWebClient(token=simulator.tokens[0], base_url=f"{simulator.url}/api/")


async def test_the_sdk_posts_edits_and_reads(simulator: Simulator, client: AsyncWebClient) -> None:
    """Messages and their metadata are where the SDK looks for them."""
    assert (await client.auth_test())["user_id"] == "U0BOT"
    mark = {"event_type": "x", "event_payload": {"delivery_id": "d"}}
    sent = await client.chat_postMessage(channel=ROOM, text="hello", metadata=mark)
    await client.chat_update(channel=ROOM, ts=str(sent["ts"]), text="good day")
    (post,) = simulator.messages()
    assert (post.text, post.history, post.raw["metadata"]) == ("good day", ["hello"], mark)


async def test_the_sdk_uploads(simulator: Simulator, client: AsyncWebClient) -> None:
    """The SDK's three-step upload ends with a message."""
    answer = await client.files_upload_v2(channel=ROOM, filename="r.txt", content="result")
    assert simulator.world.contents[answer["files"][0]["id"]] == b"result"
    assert len(simulator.messages()) == 1


async def test_the_sdk_understands_a_refusal(simulator: Simulator, client: AsyncWebClient) -> None:
    """A refusal has its word, a rate limit its delay."""
    with pytest.raises(SlackApiError) as caught:
        await client.chat_postMessage(channel="C0NOWHERE", text="hello")
    assert caught.value.response["error"] == "channel_not_found"
    await simulator.fail("ratelimited", status=429, retry_after=17)
    with pytest.raises(SlackApiError) as limited:
        await client.chat_postMessage(channel=ROOM, text="hello")
    assert limited.value.response.headers["Retry-After"] == "17"


async def test_the_sdk_listens_by_socket(simulator: Simulator) -> None:
    """The SDK's Socket Mode client is told, acknowledges, and is not told again."""
    web = AsyncWebClient(base_url=f"{simulator.url}/api/")
    listener = SocketModeClient(app_token=simulator.tokens[1], web_client=web)
    heard: asyncio.Queue[SocketModeRequest] = asyncio.Queue()

    async def listen(client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        await heard.put(request)

    listener.socket_mode_request_listeners.append(listen)
    try:
        await listener.connect()  # type: ignore[no-untyped-call]
        await simulator.say(ROOM, "hello")
        async with asyncio.timeout(10):
            request = await heard.get()
    finally:
        await listener.close()  # type: ignore[no-untyped-call]
    assert (request.type, request.payload["event"]["text"]) == ("events_api", "hello")


def test_the_sdk_verifies_a_signature() -> None:
    """What the simulator signs is what the SDK takes."""
    headers = signed("simulated-signing-secret", b"body", "application/json")
    verifier = SignatureVerifier("simulated-signing-secret")
    assert verifier.is_valid_request(b"body", headers)
    assert not verifier.is_valid_request(b"other", headers)
